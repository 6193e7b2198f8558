/** Shapes of tensors: what fits the metadata of a model, and what follows from values. */

export function shown(shape: readonly number[]): string {
  return `[${shape.join(", ")}]`;
}

export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, dim) => product * dim, 1);
}

export function isFixed(dims: readonly number[]): boolean {
  return dims.every((dim) => dim >= 0);
}

/** The numbers in a text like `[1, 3, 224, 224]` or `1x3x224x224`. Throws RangeError. */
export function shapeFrom(text: string): number[] {
  const parts = text.split(/[\s,x×[\]]+/).filter(Boolean);
  return parts.map((part) => {
    if (!/^\d+$/.test(part)) throw new RangeError(`'${part}' is not the size of a dimension.`);
    return Number(part);
  });
}

/** Throws RangeError where `shape` is none that `dims` allow. */
export function checkShape(shape: readonly number[], dims: readonly number[]): void {
  const fits = shape.length === dims.length && dims.every((dim, axis) => dim < 0 || dim === shape[axis]);
  if (!fits) throw new RangeError(`The shape ${shown(shape)} does not fit ${shown(dims)}.`);
}

/** The shape of a nested list: sizes until elements come. Throws RangeError for lists of unequal length. */
export function nestedShape(value: unknown): number[] {
  if (!Array.isArray(value)) return [];
  const shapes = value.map(nestedShape);
  const first = shapes[0] ?? [];
  if (shapes.some((shape) => String(shape) !== String(first))) throw new RangeError("The rows differ in their sizes.");
  return [value.length, ...first];
}

/** The shape of so many elements without an order in rows: the last free dimension takes what the others leave. */
export function flatShape(numElements: number, dims: readonly number[]): number[] {
  const fixed = sizeOf(dims.filter((dim) => dim >= 0));
  const free = dims.map((dim, axis) => (dim < 0 ? axis : -1)).filter((axis) => axis >= 0);
  const fits = free.length ? fixed > 0 && numElements % fixed === 0 : numElements === fixed;
  if (!fits) throw new RangeError(`${numElements} values do not fill ${shown(dims)}.`);
  return dims.map((dim, axis) => (dim >= 0 ? dim : axis === free.at(-1) ? numElements / fixed : 1));
}

/** A shape to begin with: one row, and few values in free dimensions. */
export function exampleShape(dims: readonly number[], hasBatch: boolean): number[] {
  const places = imagePlaces(dims);
  return dims.map((dim, axis) => {
    if (dim >= 0) return dim;
    if (axis === 0 && hasBatch) return 1;
    return places && (axis === places.height || axis === places.width) ? 224 : dims.length === 1 ? 4 : 1;
  });
}

export interface ImagePlaces {
  channels: number | null;
  height: number;
  width: number;
}

/** Which dimensions of an image-like shape are which; null for other shapes. Free sizes count as large ones. */
export function imagePlaces(dims: readonly number[]): ImagePlaces | null {
  const rank = dims.length;
  const isLarge = (axis: number) => (dims[axis] ?? 0) < 0 || (dims[axis] ?? 0) >= 8;
  const isChannels = (axis: number) => [1, 3, 4].includes(dims[axis] ?? 0);
  if (dims.slice(0, Math.max(0, rank - 3)).some((dim) => dim !== 1 && dim !== -1)) return null;
  if (rank >= 3 && isChannels(rank - 3) && isLarge(rank - 2) && isLarge(rank - 1)) {
    return { channels: rank - 3, height: rank - 2, width: rank - 1 };
  }
  if (rank >= 3 && isChannels(rank - 1) && isLarge(rank - 3) && isLarge(rank - 2)) {
    return { channels: rank - 1, height: rank - 3, width: rank - 2 };
  }
  return null;
}
