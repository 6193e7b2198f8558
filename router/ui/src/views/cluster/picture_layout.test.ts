import { expect, test } from "vitest";
import type { WorkerEntry } from "../../api/live_state";
import { flowsOf, LEAST_WIDTH, layOut, MOST_WIDTH } from "./picture_layout";

function workers(numPrefill: number, numDecode: number): WorkerEntry[] {
  const some = (role: string, num: number) =>
    Array.from({ length: num }, (_, number) => ({ name: `${role}-${number}`, role }) as WorkerEntry);
  return [...some("decode", numDecode), ...some("prefill", numPrefill)];
}

test.each([LEAST_WIDTH, 700, MOST_WIDTH])("tiles do not overlap and fit into a width of %i", (width) => {
  for (const [numPrefill, numDecode] of [
    [1, 1],
    [2, 6],
    [0, 3],
    [3, 0],
    [40, 160],
    [190, 10],
    [0, 0],
  ] as const) {
    const layout = layOut(workers(numPrefill, numDecode), width);
    const tiles = [...layout.prefill, ...layout.decode];
    expect(tiles.length).toBe(numPrefill + numDecode);
    expect(new Set(tiles.map((tile) => `${tile.x} ${tile.y}`)).size).toBe(tiles.length);
    for (const tile of tiles) {
      expect(tile.x + layout.tileWidth).toBeLessThanOrEqual(width);
      expect(tile.y + layout.tileHeight).toBeLessThanOrEqual(layout.height);
    }
    const edge = Math.max(0, ...layout.prefill.map((tile) => tile.x + layout.tileWidth));
    if (numPrefill) for (const tile of layout.decode) expect(tile.x).toBeGreaterThan(edge);
  }
});

test("workers are in the order of their numbers", () => {
  const names = layOut(workers(0, 12), 700).decode.map((tile) => tile.worker.name);
  expect(names.slice(0, 3)).toEqual(["decode-0", "decode-1", "decode-2"]);
});

test("flows join workers that are there, the largest first", () => {
  const layout = layOut(workers(1, 2), 700);
  const flows = flowsOf(layout, [
    ["prefill-0", "decode-0", 1, 50],
    ["prefill-0", "decode-1", 2, 100],
    ["prefill-0", "gone", 9, 999],
  ]);
  expect(flows.map((flow) => flow.key)).toEqual(["prefill-0 decode-1", "prefill-0 decode-0"]);
  expect(flowsOf(layout, [["prefill-0", "decode-0", 1, 50]], 0)).toEqual([]);
});
