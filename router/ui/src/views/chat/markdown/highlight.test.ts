import { expect, test } from "vitest";
import { codeParts } from "./highlight";

test("parts are put together to the text that they came from", () => {
  const code = 'def f(x):  # a comment\n    return "text" + x * 2.5\n';
  expect(
    codeParts(code)
      .map((part) => part.text)
      .join(""),
  ).toBe(code);
});

test("keywords, texts, numbers and comments are told apart", () => {
  const kinds = codeParts('return "a" + 1 # b').map((part) => [part.kind, part.text]);
  expect(kinds.filter(([kind]) => kind)).toEqual([
    ["keyword", "return"],
    ["string", '"a"'],
    ["number", "1"],
    ["comment", "# b"],
  ]);
});
