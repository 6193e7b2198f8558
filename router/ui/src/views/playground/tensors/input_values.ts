/** What a person has given for an input, and the tensor that it makes. */

import type { TensorMetadata } from "../models";
import { bytesOf, type Element, elementOf, isInteger, withLength } from "./datatypes";
import { checkShape, exampleShape, flatShape, nestedShape, shapeFrom, sizeOf } from "./shapes";

/** The content of a file: bytes as they are for BYTES, else the elements that its picture or sound makes. */
export interface FileValues {
  name: string;
  bytes: Uint8Array<ArrayBuffer> | null;
  elements: number[];
  shape: number[];
}

export interface InputDraft {
  isSent: boolean;
  text: string;
  /** Empty: that of the values. */
  shape: string;
  file: FileValues | null;
}

export interface TensorValue {
  name: string;
  datatype: string;
  shape: number[];
  elements: Element[];
  /** The one element of a BYTES tensor that is no text. */
  raw: Uint8Array<ArrayBuffer> | null;
}

/** Throws RangeError with what is wrong. */
export function tensorOf(tensor: TensorMetadata, draft: InputDraft): TensorValue {
  try {
    const value = draft.file ? fromFile(tensor, draft.file, draft.shape) : fromText(tensor, draft.text, draft.shape);
    checkShape(value.shape, tensor.shape);
    if (!value.raw && value.elements.length !== sizeOf(value.shape)) {
      throw new RangeError(`${value.elements.length} values do not fill [${value.shape.join(", ")}].`);
    }
    return value;
  } catch (error) {
    if (error instanceof RangeError) throw new RangeError(`${tensor.name}: ${error.message}`);
    throw error;
  }
}

function fromFile(tensor: TensorMetadata, file: FileValues, shape: string): TensorValue {
  const { name, datatype } = tensor;
  if (file.bytes) {
    return { name, datatype, shape: flatShape(1, tensor.shape), elements: [], raw: file.bytes };
  }
  const own = shape.trim() ? shapeFrom(shape) : file.shape;
  return { name, datatype, shape: own, elements: file.elements, raw: null };
}

function fromText(tensor: TensorMetadata, text: string, shape: string): TensorValue {
  const { name, datatype } = tensor;
  const values = readValues(text, datatype);
  const flat = Array.isArray(values) ? values.flat(Number.POSITIVE_INFINITY) : [values];
  const elements = flat.map((value) => elementOf(value, datatype));
  const own = shape.trim() ? shapeFrom(shape) : shapeOf(values, elements.length, tensor.shape);
  return { name, datatype, shape: own, elements, raw: null };
}

function shapeOf(values: unknown, numElements: number, dims: readonly number[]): number[] {
  const nested = nestedShape(values);
  return nested.length === dims.length && nested.length > 1 ? nested : flatShape(numElements, dims);
}

/** JSON, or numbers with spaces or commas between them; of BYTES, a text that is no list is one element. */
function readValues(text: string, datatype: string): unknown {
  if (datatype === "BYTES") {
    const list = text.trim().startsWith("[") ? parsed(text) : undefined;
    return Array.isArray(list) ? list : text;
  }
  const json = parsed(text);
  if (json !== undefined) return json;
  return text
    .split(/[\s,]+/)
    .filter(Boolean)
    .map((part) => {
      const value = parsed(part);
      if (value === undefined) throw new RangeError(`'${part}' is not a value of ${datatype}.`);
      return value;
    });
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function bytesOfValue(value: TensorValue): Uint8Array<ArrayBuffer> {
  return value.raw ? withLength(value.raw) : bytesOf(value.elements, value.datatype);
}

/** Text for an input to begin with. */
export function exampleText(tensor: TensorMetadata, hasBatch: boolean): string {
  if (tensor.datatype === "BYTES") return "hello";
  if (tensor.datatype === "BOOL") return "true";
  const shape = exampleShape(tensor.shape, hasBatch);
  return sizeOf(shape) > 4096 ? "" : JSON.stringify(filled(shape, (index) => (index % 8) + 1));
}

const WORDS = ["a", "red", "fox", "reads", "the", "long", "list", "of", "words", "and", "counts", "them"];

export function randomText(tensor: TensorMetadata, shape: string, hasBatch: boolean): string {
  const dims = shape.trim() ? shapeFrom(shape) : exampleShape(tensor.shape, hasBatch);
  if (tensor.datatype === "BYTES") {
    const text = () => Array.from({ length: 5 }, () => WORDS[Math.floor(Math.random() * WORDS.length)]).join(" ");
    return sizeOf(dims) === 1 ? text() : JSON.stringify(filled(dims, text));
  }
  return JSON.stringify(filled(dims, () => randomElement(tensor.datatype)));
}

function randomElement(datatype: string): number | boolean {
  if (datatype === "BOOL") return Math.random() < 0.5;
  if (isInteger(datatype)) return Math.floor(Math.random() * 100);
  return Math.round((Math.random() * 2 - 1) * 1e4) / 1e4;
}

function filled(shape: readonly number[], element: (index: number) => unknown): unknown {
  let index = 0;
  const part = (axis: number): unknown =>
    axis === shape.length ? element(index++) : Array.from({ length: shape[axis] ?? 0 }, () => part(axis + 1));
  return part(0);
}
