/** Where the tiles of the workers are: prefill workers on the left, decode workers on the right, between them the room
 * for what flows from one to the other. */
import type { Pair, WorkerEntry } from "../../api/live_state";
import { byName } from "../../parts/order";

export interface Tile {
  worker: WorkerEntry;
  x: number;
  y: number;
}

export interface Flow {
  key: string;
  path: string;
  /** Of the widest flow. */
  share: number;
  label: string;
}

export interface PictureLayout {
  width: number;
  height: number;
  tileWidth: number;
  tileHeight: number;
  /** Whether there is room for names. */
  isLarge: boolean;
  prefill: Tile[];
  decode: Tile[];
  decodeX: number;
  /** Between the two sides. */
  flowWidth: number;
}

/** Within which widths it is laid out. */
export const LEAST_WIDTH = 330;
export const MOST_WIDTH = 1400;
const GAP = 6;
const FLOW_WIDTH = { wide: 170, narrow: 68 };
const NARROW_WIDTH = 560;
const TOP = 24; // for the headings
const MAX_LARGE = 24;
const MAX_ROWS = 6; // while there is room for more columns
const LARGE = { width: 128, height: 54 };
const SMALL = { width: 38, height: 30 };

export function layOut(workers: readonly WorkerEntry[], width: number): PictureLayout {
  const inOrder = byName(workers);
  const prefill = inOrder.filter((worker) => worker.role === "prefill");
  const decode = inOrder.filter((worker) => worker.role === "decode");
  const isLarge = workers.length <= MAX_LARGE;
  const { width: tileWidth, height: tileHeight } = isLarge ? LARGE : SMALL;
  const flowWidth = width < NARROW_WIDTH ? FLOW_WIDTH.narrow : FLOW_WIDTH.wide;
  const fitting = Math.floor((width - flowWidth + GAP) / (tileWidth + GAP));
  const left = prefill.length ? columnsOf(prefill.length, decode.length, fitting) : 0;
  const decodeX = left ? left * (tileWidth + GAP) - GAP + flowWidth : 0;
  const room = Math.max(1, left ? fitting - left : Math.floor((width + GAP) / (tileWidth + GAP)));
  const right = Math.max(1, Math.min(room, Math.ceil(decode.length / (left ? MAX_ROWS : 1))));
  const place = (all: WorkerEntry[], x: number, columns: number) =>
    all.map((worker, number) => ({
      worker,
      x: x + (number % columns) * (tileWidth + GAP),
      y: TOP + Math.floor(number / columns) * (tileHeight + GAP),
    }));
  const tiles = { prefill: place(prefill, 0, Math.max(1, left)), decode: place(decode, decodeX, right) };
  const bottom = Math.max(TOP, ...[...tiles.prefill, ...tiles.decode].map((tile) => tile.y + tileHeight));
  return { width, height: bottom + 2, tileWidth, tileHeight, isLarge, decodeX, flowWidth, ...tiles };
}

/** The columns of the left side: as its share of all workers, and few where they are few. */
function columnsOf(numLeft: number, numRight: number, fitting: number): number {
  const share = Math.round((fitting * numLeft) / (numLeft + numRight));
  return Math.max(1, Math.min(fitting - 1, share, Math.ceil(numLeft / MAX_ROWS)));
}

/** Curves between the two sides, at the height of their workers: the largest `most` of them. */
export function flowsOf(layout: PictureLayout, pairs: readonly Pair[], most = 60): Flow[] {
  const from = new Map(layout.prefill.map((tile) => [tile.worker.name, tile]));
  const to = new Map(layout.decode.map((tile) => [tile.worker.name, tile]));
  const shown = [...pairs].sort((a, b) => b[3] - a[3]).slice(0, most);
  const prefillEdge = Math.max(0, ...layout.prefill.map((tile) => tile.x + layout.tileWidth));
  const largest = Math.max(1, ...shown.map((pair) => pair[3]));
  return shown.flatMap(([prefill, decode, num, bytes]) => {
    const start = from.get(prefill);
    const end = to.get(decode);
    if (!start || !end) return [];
    const [x1, y1] = [prefillEdge, start.y + layout.tileHeight / 2];
    const [x2, y2] = [layout.decodeX, end.y + layout.tileHeight / 2];
    const middle = (x1 + x2) / 2;
    return [
      {
        key: `${prefill} ${decode}`,
        path: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`,
        share: bytes / largest,
        label: `${prefill} to ${decode}: ${num}`,
      },
    ];
  });
}
