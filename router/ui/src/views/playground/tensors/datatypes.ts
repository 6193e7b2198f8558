/** Datatypes of KServe v2: their elements as text, as numbers, and as bytes in little endian. */

export type Element = number | boolean | string | bigint;

const INTEGER_BITS: Record<string, number> = { INT8: 8, INT16: 16, INT32: 32, INT64: 64 };
const UNSIGNED_BITS: Record<string, number> = { UINT8: 8, UINT16: 16, UINT32: 32, UINT64: 64 };
const FLOATS = new Set(["FP16", "BF16", "FP32", "FP64"]);

/** What JSON of KServe v2 cannot carry. */
export const BINARY_ONLY = new Set(["FP16", "BF16"]);

export function isNumeric(datatype: string): boolean {
  return isInteger(datatype) || FLOATS.has(datatype);
}

export function isInteger(datatype: string): boolean {
  return datatype in INTEGER_BITS || datatype in UNSIGNED_BITS;
}

export function rangeOf(datatype: string): [bigint, bigint] {
  const unsigned = UNSIGNED_BITS[datatype];
  if (unsigned) return [0n, (1n << BigInt(unsigned)) - 1n];
  const bits = BigInt(INTEGER_BITS[datatype] ?? 64);
  return [-(1n << (bits - 1n)), (1n << (bits - 1n)) - 1n];
}

/** The element that `value`, as JSON has it, stands for. Throws RangeError. */
export function elementOf(value: unknown, datatype: string): Element {
  if (datatype === "BYTES") return typeof value === "string" ? value : JSON.stringify(value);
  if (datatype === "BOOL") {
    if (typeof value === "boolean") return value;
    if (value === 0 || value === 1) return value === 1;
    throw new RangeError(`${JSON.stringify(value)} is not true or false.`);
  }
  if (typeof value !== "number") throw new RangeError(`${JSON.stringify(value)} is not a number.`);
  if (!isInteger(datatype)) return value;
  if (!Number.isInteger(value)) throw new RangeError(`${value} is no integer, as ${datatype} needs.`);
  if (!Number.isSafeInteger(value)) throw new RangeError(`${value} is beyond what a browser's JSON can write exactly.`);
  const [least, most] = rangeOf(datatype);
  if (BigInt(value) < least || BigInt(value) > most) {
    throw new RangeError(`${value} is out of the range of ${datatype}: ${least} to ${most}.`);
  }
  return value;
}

export function bytesOf(elements: readonly Element[], datatype: string): Uint8Array<ArrayBuffer> {
  if (datatype === "BYTES") return joined(elements.map((one) => withLength(new TextEncoder().encode(String(one)))));
  const size = sizeOf(datatype);
  const bytes = new Uint8Array(elements.length * size);
  const view = new DataView(bytes.buffer);
  const { put } = codecOf(datatype);
  elements.forEach((element, index) => {
    put(view, index * size, element);
  });
  return bytes;
}

/** An element of BYTES: its length in four bytes, and itself. */
export function withLength(element: Uint8Array): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(4 + element.length);
  new DataView(bytes.buffer).setUint32(0, element.length, true);
  bytes.set(element, 4);
  return bytes;
}

export function joined(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

export function elementsFrom(bytes: Uint8Array, datatype: string): Element[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const { take } = codecOf(datatype);
  const size = sizeOf(datatype);
  return Array.from({ length: Math.floor(bytes.length / size) }, (_, index) => take(view, index * size));
}

/** The elements of a BYTES tensor. */
export function stringsFrom(bytes: Uint8Array): Uint8Array<ArrayBuffer>[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const strings: Uint8Array<ArrayBuffer>[] = [];
  for (let at = 0; at + 4 <= bytes.length; ) {
    const length = view.getUint32(at, true);
    strings.push(new Uint8Array(bytes.slice(at + 4, at + 4 + length)));
    at += 4 + length;
  }
  return strings;
}

function sizeOf(datatype: string): number {
  if (datatype === "BOOL") return 1;
  const bits = /\d+$/.exec(datatype)?.[0];
  if (!bits) throw new RangeError(`The datatype ${datatype} is not known.`);
  return Number(bits) / 8;
}

interface Codec {
  put: (view: DataView, at: number, element: Element) => void;
  take: (view: DataView, at: number) => Element;
}

const CODECS: Record<string, Codec> = {
  BOOL: { put: (view, at, one) => view.setUint8(at, one ? 1 : 0), take: (view, at) => view.getUint8(at) !== 0 },
  INT8: { put: (view, at, one) => view.setInt8(at, Number(one)), take: (view, at) => view.getInt8(at) },
  INT16: { put: (view, at, one) => view.setInt16(at, Number(one), true), take: (view, at) => view.getInt16(at, true) },
  INT32: { put: (view, at, one) => view.setInt32(at, Number(one), true), take: (view, at) => view.getInt32(at, true) },
  INT64: {
    put: (view, at, one) => view.setBigInt64(at, BigInt(one), true),
    take: (view, at) => view.getBigInt64(at, true),
  },
  UINT8: { put: (view, at, one) => view.setUint8(at, Number(one)), take: (view, at) => view.getUint8(at) },
  UINT16: {
    put: (view, at, one) => view.setUint16(at, Number(one), true),
    take: (view, at) => view.getUint16(at, true),
  },
  UINT32: {
    put: (view, at, one) => view.setUint32(at, Number(one), true),
    take: (view, at) => view.getUint32(at, true),
  },
  UINT64: {
    put: (view, at, one) => view.setBigUint64(at, BigInt(one), true),
    take: (view, at) => view.getBigUint64(at, true),
  },
  FP16: {
    put: (view, at, one) => view.setUint16(at, halfOf(Number(one)), true),
    take: (view, at) => fromHalf(view.getUint16(at, true)),
  },
  BF16: {
    put: (view, at, one) => view.setUint16(at, upperHalfOf(Number(one)), true),
    take: (view, at) => fromUpperHalf(view.getUint16(at, true)),
  },
  FP32: {
    put: (view, at, one) => view.setFloat32(at, Number(one), true),
    take: (view, at) => view.getFloat32(at, true),
  },
  FP64: {
    put: (view, at, one) => view.setFloat64(at, Number(one), true),
    take: (view, at) => view.getFloat64(at, true),
  },
};

function codecOf(datatype: string): Codec {
  const codec = CODECS[datatype];
  if (!codec) throw new RangeError(`The datatype ${datatype} is not known.`);
  return codec;
}

function upperHalfOf(value: number): number {
  const bits = new Uint32Array(new Float32Array([value]).buffer)[0] ?? 0;
  if (Number.isNaN(value)) return 0x7fc0;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff; // to nearest, ties to even
}

function fromUpperHalf(bits: number): number {
  return new Float32Array(new Uint32Array([bits << 16]).buffer)[0] ?? 0;
}

/** To nearest, ties to even. */
function halfOf(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | toEven(size * 2 ** 24);
  const exponent = Math.floor(Math.log2(size));
  return sign | ((exponent + 14) * 1024 + toEven((size / 2 ** exponent) * 1024));
}

function toEven(value: number): number {
  const down = Math.floor(value);
  const rest = value - down;
  return rest > 0.5 || (rest === 0.5 && down % 2 === 1) ? down + 1 : down;
}

function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
