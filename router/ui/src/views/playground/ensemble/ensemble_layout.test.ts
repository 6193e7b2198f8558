import { describe, expect, it } from "vitest";
import type { EnsembleStep, Model } from "../models";
import { graphOf, layersOf, layoutOf } from "./ensemble_layout";

function step(model_name: string, reads: string[], writes: string[]): EnsembleStep {
  const own = (names: string[]) => Object.fromEntries(names.map((name) => [name, name]));
  return { model_name, model_version: -1, input_map: own(reads), output_map: own(writes) };
}

function ensemble(inputs: string[], outputs: string[], steps: EnsembleStep[]): Model {
  const tensor = (name: string) => ({ name, datatype: "FP32", shape: [1] });
  return {
    metadata: {
      name: "e",
      versions: ["1"],
      platform: "ensemble",
      inputs: inputs.map(tensor),
      outputs: outputs.map(tensor),
    },
    config: { name: "e", ensemble_scheduling: { step: steps } },
  };
}

const DIAMOND = ensemble(
  ["x"],
  ["z"],
  [step("join", ["a", "b", "x"], ["z"]), step("left", ["x"], ["a"]), step("right", ["x"], ["b"])],
);

describe("the graph of an ensemble", () => {
  it("connects each tensor's producer with its readers", () => {
    const edges = graphOf(DIAMOND).edges.map(({ from, to }) => `${from} > ${to}`);
    expect(edges).toEqual([
      "step 1 > step 0",
      "step 2 > step 0",
      "input x > step 0",
      "input x > step 1",
      "input x > step 2",
      "step 0 > output z",
    ]);
  });
  it("has each tensor flow to a later layer, whatever the order of the steps", () => {
    const graph = graphOf(DIAMOND);
    const layers = layersOf(graph);
    for (const { from, to } of graph.edges) expect(layers.get(from)).toBeLessThan(layers.get(to) ?? -1);
  });
  it("places no node over another", () => {
    const wide = Array.from({ length: 9 }, (_, index) => step(`model ${index}`, ["x"], [`y${index}`]));
    const names = wide.map((_, index) => `y${index}`);
    const { nodes, width, height } = layoutOf(graphOf(ensemble(["x"], ["z"], [...wide, step("all", names, ["z"])])));
    for (const one of nodes) {
      expect(one.x + one.width).toBeLessThanOrEqual(width);
      expect(one.y + one.height / 2).toBeLessThanOrEqual(height);
      for (const other of nodes) {
        if (one === other) continue;
        const isApart =
          one.x + one.width <= other.x ||
          other.x + other.width <= one.x ||
          Math.abs(one.y - other.y) >= (one.height + other.height) / 2;
        expect(isApart, `${one.label} and ${other.label}`).toBe(true);
      }
    }
  });
  it("ends where steps wait for each other", () => {
    const circle = ensemble(["x"], ["a"], [step("one", ["b"], ["a"]), step("two", ["a"], ["b"])]);
    expect(layoutOf(graphOf(circle)).nodes).toHaveLength(4);
  });
});
