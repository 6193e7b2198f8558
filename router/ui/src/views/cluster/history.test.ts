import { expect, test } from "vitest";
import { EMPTY, type LiveState, type ModelEntry } from "../../api/live_state";
import { MAX_POINTS, type Point, pointOf, withPoint } from "./history";

function state(...models: { tokens: number; attainment: number | null }[]): LiveState {
  const entries = models.map(({ tokens, attainment }, number) => [
    `m${number}`,
    {
      num_running: 2,
      num_waiting: 1,
      window: { requests_per_s: 3, ttft_p50_s: 0, ttft_p99_s: 0.5, itl_p50_s: 0, itl_p99_s: 0, attainment },
      totals: { output_tokens: tokens },
    } as unknown as ModelEntry,
  ]);
  return { ...EMPTY, models: new Map(entries as [string, ModelEntry][]) };
}

test("a point has sums and rates, and the attainment of the model that does worst", () => {
  const point = pointOf(state({ tokens: 300, attainment: 0.9 }, { tokens: 0, attainment: 0.5 }), 12, {
    time_s: 10,
    outputTokens: 100,
  });
  expect(point).toMatchObject({ tokens_per_s: 100, requests_per_s: 6, running: 4, waiting: 2, attainment: 0.5 });
  expect([point.ttft_p50_s, point.ttft_p99_s]).toEqual([null, 0.5]);
});

test("a router that counts anew gives no negative rate, and the first point none", () => {
  expect(pointOf(state({ tokens: 5, attainment: null }), 11, { time_s: 10, outputTokens: 100 }).tokens_per_s).toBe(0);
  expect(pointOf(EMPTY, 1, null)).toMatchObject({ attainment: null, tokens_per_s: null });
});

test("old points are dropped", () => {
  let points: Point[] = [];
  for (let time_s = 0; time_s < MAX_POINTS + 5; time_s++) points = withPoint(points, pointOf(EMPTY, time_s, null));
  expect([points.length, points[0]?.time_s]).toEqual([MAX_POINTS, 5]);
});
