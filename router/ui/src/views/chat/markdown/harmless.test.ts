import { expect, test } from "vitest";
import { markdown } from "./harmless";

test("lines of a paragraph keep their indentation, so that source text without a fence can be read", () => {
  expect(markdown.parse("def f(x):\n    return x\nend")).toBe(
    "<p>def f(x):<br>\u00a0\u00a0\u00a0\u00a0return x<br>end</p>\n",
  );
});

test("spaces at the end of a line are no indentation", () => {
  expect(markdown.parse("one  \ntwo")).toBe("<p>one<br>two</p>\n");
});
