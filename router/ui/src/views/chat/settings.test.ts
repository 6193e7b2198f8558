import { expect, test } from "vitest";
import { DEFAULTS, fieldsOf } from "./settings";

test("defaults ask for nothing", () => {
  expect(fieldsOf(DEFAULTS)).toEqual({});
});

test("a bare function becomes a tool", () => {
  expect(fieldsOf({ ...DEFAULTS, tools: '{"name": "f"}' }).tools).toEqual([
    { type: "function", function: { name: "f" } },
  ]);
});

test("what is not a number is named", () => {
  expect(() => fieldsOf({ ...DEFAULTS, seed: "abc" })).toThrow('seed: "abc"');
});

test("tools that are not JSON are named", () => {
  expect(() => fieldsOf({ ...DEFAULTS, tools: "[" })).toThrow("The tools are not JSON");
});
