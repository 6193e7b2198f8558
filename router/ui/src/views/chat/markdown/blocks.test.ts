import { expect, test } from "vitest";
import { GrowingBlocks } from "./blocks";

const TEXT = "# A title\n\nA paragraph\nof two lines.\n\n- one\n\n- two\n\n```python\nx = 1\n\ny = 2\n```\n\nThe end.";

test("blocks are put together to the text that they came from", () => {
  expect(new GrowingBlocks().of(TEXT).join("")).toBe(TEXT);
});

test("a text that grows by characters has the blocks of the whole text", () => {
  const growing = new GrowingBlocks();
  let blocks: string[] = [];
  for (let end = 1; end <= TEXT.length; end++) blocks = growing.of(TEXT.slice(0, end));
  expect(blocks).toEqual(new GrowingBlocks().of(TEXT));
});

test("a block of code with blank lines is one block, also while it is open", () => {
  expect(new GrowingBlocks().of("```\na\n\nb\n\nc")).toHaveLength(1);
});

test("another text begins anew", () => {
  const growing = new GrowingBlocks();
  growing.of("one\n\ntwo\n\nthree");
  expect(growing.of("something else")).toEqual(["something else"]);
});
