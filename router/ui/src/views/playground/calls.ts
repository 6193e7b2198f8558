/** Requests to a model: their bodies, and the command that sends the same. */
import { apiKey, urlOf } from "../../api/client";
import { type ModelMetadata, pathOf } from "./models";
import { BINARY_ONLY, joined } from "./tensors/datatypes";
import { bytesOfValue, type TensorValue } from "./tensors/input_values";

export type CallKind = "infer" | "generate" | "generate_stream";

/** How a request is served; empty: as the model's configuration says. */
export interface Scheduling {
  priority: string;
  timeout: string;
  sequenceId: string;
  isSequenceStart: boolean;
  isSequenceEnd: boolean;
}

export interface Call {
  kind: CallKind;
  path: string;
  /** What is sent, as JSON; with binary data, the part before them. */
  head: Record<string, unknown>;
  /** The data of the inputs, behind the JSON; null: all is JSON. */
  binary: Uint8Array<ArrayBuffer> | null;
}

export interface CallOptions {
  version: string;
  parameters: Record<string, unknown>;
  scheduling: Scheduling;
  isBinary: boolean;
}

/** Throws RangeError for a value that is not a whole number. */
export function callOf(
  kind: CallKind,
  metadata: ModelMetadata,
  values: readonly TensorValue[],
  options: CallOptions,
): Call {
  const path = `${pathOf(metadata.name, options.version)}/${kind}`;
  if (kind !== "infer") return { kind, path, head: fieldsOf(values, options.parameters), binary: null };
  const parameters = { ...options.parameters, ...scheduled(options.scheduling) };
  const tensors = [...metadata.inputs, ...metadata.outputs];
  const isBinary = options.isBinary || values.some((value) => value.raw) || tensors.some(isBinaryOnly);
  const head: Record<string, unknown> = { inputs: values.map((value) => inputOf(value, isBinary)) };
  if (isBinary) parameters.binary_data_output = true;
  if (Object.keys(parameters).length) head.parameters = parameters;
  return { kind, path, head, binary: isBinary ? joined(values.map(bytesOfValue)) : null };
}

export function bodyOf(call: Call): Uint8Array<ArrayBuffer> {
  const head = new TextEncoder().encode(JSON.stringify(call.head));
  return call.binary ? joined([head, call.binary]) : head;
}

export function headersOf(call: Call): Record<string, string> {
  if (!call.binary) return { "content-type": "application/json" };
  const length = new TextEncoder().encode(JSON.stringify(call.head)).length;
  return { "content-type": "application/octet-stream", "inference-header-content-length": String(length) };
}

/** The command for a shell. The key is not in it, but the variable that holds it. */
export function curlOf(call: Call): string {
  const words = ["curl", call.kind === "generate_stream" ? "-N" : "-s", urlOf(call.path)];
  if (apiKey.value) words.push('-H "Authorization: Bearer $SLIPSTREAM_KEY"');
  if (!call.binary) return [...words, "-d", quoted(JSON.stringify(call.head))].join(" ");
  const headers = Object.entries(headersOf(call)).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`);
  const pipe = `{ printf %s ${quoted(JSON.stringify(call.head))}; echo ${base64(call.binary)} | base64 -d; } |`;
  return [pipe, ...words, ...headers, "--data-binary @- --output -"].join(" ");
}

function fieldsOf(values: readonly TensorValue[], parameters: Record<string, unknown>): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const value of values) {
    const elements = value.raw ? [base64(value.raw)] : value.elements;
    fields[value.name] = elements.length === 1 ? elements[0] : elements;
  }
  return { ...fields, ...parameters };
}

function inputOf(value: TensorValue, isBinary: boolean): Record<string, unknown> {
  const { name, datatype, shape } = value;
  if (!isBinary) return { name, datatype, shape, data: value.elements };
  return { name, datatype, shape, parameters: { binary_data_size: bytesOfValue(value).length } };
}

function scheduled(scheduling: Scheduling): Record<string, unknown> {
  const parameters: Record<string, unknown> = {};
  if (scheduling.priority) parameters.priority = wholeNumber(scheduling.priority, "priority");
  if (scheduling.timeout) parameters.timeout = wholeNumber(scheduling.timeout, "timeout");
  const id = scheduling.sequenceId.trim();
  if (id) {
    parameters.sequence_id = /^\d{1,15}$/.test(id) ? Number(id) : id;
    parameters.sequence_start = scheduling.isSequenceStart;
    parameters.sequence_end = scheduling.isSequenceEnd;
  }
  return parameters;
}

function wholeNumber(text: string, name: string): number {
  if (!/^\d{1,15}$/.test(text.trim())) throw new RangeError(`${name}: '${text}' is not a whole number.`);
  return Number(text);
}

function isBinaryOnly(tensor: { datatype: string }): boolean {
  return BINARY_ONLY.has(tensor.datatype);
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function base64(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}
