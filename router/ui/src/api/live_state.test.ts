import { expect, test } from "vitest";
import { EMPTY, withEvent } from "./live_state";

const worker = (name: string) => ({ name, role: "decode" });

test("changes leave what has not changed the same object", () => {
  const before = withEvent(EMPTY, "whole", { set: { "worker/a": worker("a"), "worker/b/c": worker("b/c") } });
  const after = withEvent(before, "changes", { set: { "worker/a": worker("a") }, removed: [] });
  expect(after.workers.get("b/c")).toBe(before.workers.get("b/c"));
  expect(after.workers.get("a")).not.toBe(before.workers.get("a"));
});

test("what was removed is gone, and a whole replaces everything", () => {
  const first = withEvent(EMPTY, "whole", {
    set: { "worker/a": worker("a"), transfers: { span_s: 5, pairs: [["p", "a", 1, 2]] } },
  });
  const second = withEvent(first, "changes", { set: {}, removed: ["worker/a", "transfers"] });
  expect(second.workers.size).toBe(0);
  expect(second.transfers.pairs).toEqual([]);
  const third = withEvent(first, "whole", { set: { "model/m": { name: "m" } } });
  expect([...third.workers.keys()]).toEqual([]);
  expect([...third.models.keys()]).toEqual(["m"]);
});
