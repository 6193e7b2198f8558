import { expect, test } from "vitest";
import { beginAnswer, timesOf, withChunk } from "./answer";

test("fragments of calls are put together by their index", () => {
  let answer = beginAnswer("m");
  const pieces = [
    { index: 0, id: "c1", function: { name: "f", arguments: "" } },
    { index: 0, function: { arguments: "{" } },
  ];
  for (const piece of [...pieces, { index: 0, function: { arguments: "}" } }]) {
    answer = withChunk(answer, { choices: [{ delta: { tool_calls: [piece] } }] });
  }
  expect(answer.calls).toEqual([{ id: "c1", name: "f", args: "{}", result: "" }]);
});

test("reasoning under both of its names counts once", () => {
  const answer = withChunk(beginAnswer("m"), { choices: [{ delta: { reasoning_content: "hm", reasoning: "hm" } }] });
  expect(answer.reasoning).toBe("hm");
});

test("the mean gap is over tokens, the 99th percentile over pieces", () => {
  const times = timesOf(0, [100, 110, 150], 6);
  expect(times?.ttftS).toBeCloseTo(0.1);
  expect(times?.itlMeanS).toBeCloseTo(0.01);
  expect(times?.itlP99S).toBeCloseTo(0.04);
});

test("an answer without a token has no times", () => {
  expect(timesOf(0, [], null)).toBeNull();
});
