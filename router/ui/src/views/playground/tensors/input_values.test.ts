import { describe, expect, it } from "vitest";
import { bytesOf, elementsFrom, stringsFrom } from "./datatypes";
import { type InputDraft, randomText, tensorOf } from "./input_values";
import { flatShape, imagePlaces } from "./shapes";

function draft(text: string, shape = ""): InputDraft {
  return { isSent: true, text, shape, file: null };
}

describe("the tensor of what a person has written", () => {
  it("takes numbers with spaces or commas between them", () => {
    const { elements, shape } = tensorOf({ name: "X", datatype: "FP32", shape: [-1] }, draft("1 2.5, -3e2"));
    expect([elements, shape]).toEqual([[1, 2.5, -300], [3]]);
  });
  it("has the shape of nested lists", () => {
    const { shape } = tensorOf({ name: "X", datatype: "INT32", shape: [-1, 2] }, draft("[[1, 2], [3, 4], [5, 6]]"));
    expect(shape).toEqual([3, 2]);
  });
  it("is one text, or a list of them", () => {
    const tensor = { name: "T", datatype: "BYTES", shape: [-1, 1] };
    expect(tensorOf(tensor, draft("a, b")).elements).toEqual(["a, b"]);
    expect(tensorOf(tensor, draft('["a", "b"]')).shape).toEqual([2, 1]);
  });
  it.each([
    ["INT8", "200", "X: 200 is out of the range of INT8: -128 to 127."],
    ["INT32", "1.5", "X: 1.5 is no integer, as INT32 needs."],
    ["FP32", "[[1], [2, 3]]", "X: The rows differ in their sizes."],
    ["FP32", "one", "X: 'one' is not a value of FP32."],
    ["BOOL", "2", "X: 2 is not true or false."],
  ])("says what is wrong with %s of %s", (datatype, text, message) => {
    expect(() => tensorOf({ name: "X", datatype, shape: [-1] }, draft(text))).toThrow(message);
  });
  it("must fill the shape", () => {
    const tensor = { name: "X", datatype: "FP32", shape: [-1, 2] };
    expect(() => tensorOf(tensor, draft("1 2 3"))).toThrow("X: 3 values do not fill [-1, 2].");
    expect(() => tensorOf(tensor, draft("1 2 3 4", "1, 2"))).toThrow("X: 4 values do not fill [1, 2].");
    expect(() => tensorOf(tensor, draft("1 2 3 4", "4, 1"))).toThrow("X: The shape [4, 1] does not fit [-1, 2].");
  });
  it("is filled randomly by any shape of any datatype", () => {
    for (const datatype of ["BOOL", "UINT8", "INT64", "FP16", "FP32", "BYTES"]) {
      const tensor = { name: "X", datatype, shape: [-1, 3] };
      expect(tensorOf(tensor, draft(randomText(tensor, "2, 3", true))).shape).toEqual([2, 3]);
    }
  });
});

describe("binary tensors", () => {
  it.each([
    ["FP16", [0, 1, -2.5, 65504, 6.103515625e-5, 2 ** -24, Number.POSITIVE_INFINITY]],
    ["BF16", [0, 1, -2.5, 3.3895313892515355e38]],
    ["FP64", [Math.PI, -0]],
    ["INT8", [-128, 127]],
    ["UINT32", [4294967295]],
    ["BOOL", [true, false]],
  ])("of %s hold what was put in", (datatype, elements) => {
    expect(elementsFrom(bytesOf(elements, datatype), datatype)).toEqual(elements);
  });
  it("hold integers of 64 bits exactly", () => {
    expect(elementsFrom(bytesOf([2n ** 63n - 1n], "INT64"), "INT64")).toEqual([2n ** 63n - 1n]);
  });
  it("hold texts behind their lengths", () => {
    const texts = stringsFrom(bytesOf(["a", "", "über"], "BYTES")).map((one) => new TextDecoder().decode(one));
    expect(texts).toEqual(["a", "", "über"]);
  });
  it("round halves to even", () => {
    expect(elementsFrom(bytesOf([2049, 2051], "FP16"), "FP16")).toEqual([2048, 2052]);
  });
});

describe("shapes", () => {
  it("give the last free dimension what the others leave", () => {
    expect(flatShape(12, [-1, 3, -1])).toEqual([1, 3, 4]);
  });
  it("are those of images with channels first or last", () => {
    expect(imagePlaces([1, 3, 224, 224])).toEqual({ channels: 1, height: 2, width: 3 });
    expect(imagePlaces([-1, -1, 3])).toEqual({ channels: 2, height: 0, width: 1 });
    expect(imagePlaces([16, 16])).toBeNull();
    expect(imagePlaces([5, 77, 768])).toBeNull();
  });
});
