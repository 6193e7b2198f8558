import { expect, test } from "vitest";
import type { Explanation, InferExplanation } from "../../api/requests";
import { inferLayoutOf, layoutOf, ticksOf } from "./timeline_layout";

const REMOTE = {
  total_s: 0.07,
  events: [
    { at_s: 0, phase: "queued", attempt: 0, detail: "" },
    { at_s: 0.047, phase: "first_token", attempt: 0, detail: "" },
    { at_s: 0.06, phase: "decode", attempt: 0, detail: "moved from decode-0 to decode-1" },
  ],
  transfer: { at_s: 0.048, num_bytes: 100, seconds: 0.036 },
  attempts: [
    {
      attempt: 0,
      stages: [
        { stage: "queued", begin_s: 0, end_s: 0, where: null },
        { stage: "prefill", begin_s: 0.002, end_s: 0.047, where: "prefill-0" },
        { stage: "transfer", begin_s: 0.047, end_s: 0.048, where: "prefill-0 -> decode-0" },
        { stage: "decode", begin_s: 0.048, end_s: null, where: "decode-0" },
      ],
    },
  ],
} as unknown as Explanation;

test("each place has a row, in the order in which it came in", () => {
  expect(layoutOf(REMOTE).rows).toEqual(["router", "prefill-0", "prefill-0 → decode-0", "decode-0"]);
});

test("a stage that has not ended goes on to the end of the picture", () => {
  const { bars } = layoutOf(REMOTE);
  expect(bars.find((bar) => bar.stage === "decode")?.endS).toBe(0.07);
});

test("the hand-off of pages begins before the prompt is finished", () => {
  const handOff = layoutOf(REMOTE).bars.find((bar) => bar.isBehind);
  expect(handOff?.beginS).toBeCloseTo(0.012);
  expect(handOff?.endS).toBe(0.048);
});

test("the first token and moves are marked", () => {
  expect(layoutOf(REMOTE).marks.map((mark) => mark.label)).toEqual(["first token", "moved from decode-0 to decode-1"]);
});

test("a refused request has a picture without bars", () => {
  const refused = { total_s: null, events: [], attempts: [], transfer: null } as unknown as Explanation;
  expect(layoutOf(refused).bars).toEqual([]);
  expect(layoutOf(refused).totalS).toBeGreaterThan(0);
});

test("steps of an ensemble are queued and then executed, nested ones below theirs", () => {
  const inner = { model: "scale", started_s: 0.02, ended_s: 0.03, queue_s: 0, steps: [] };
  const step = { model: "crop", started_s: 0.01, ended_s: 0.04, queue_s: 0.005, steps: [inner] };
  const { rows, bars } = inferLayoutOf({ total_s: 0.05, steps: [step], executions: [] } as unknown as InferExplanation);
  expect(rows).toEqual(["router", "crop", "crop / scale"]);
  expect(bars.map((bar) => [bar.stage, bar.row])).toEqual([
    ["queued", 1],
    ["decode", 1],
    ["decode", 2],
  ]);
});

test("ticks are round and stay within the time", () => {
  expect(ticksOf(0.07).map((tick) => Number(tick.toFixed(6)))).toEqual([0, 0.02, 0.04, 0.06]);
  expect(ticksOf(1).at(-1)).toBeCloseTo(1);
});
