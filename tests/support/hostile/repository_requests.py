"""Hostile to ensembles, and to what loads them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from tests.support.hostile.hostile_request import DEEP, TRITON, HostileRequest, binary, json_bytes, load


def of_ensembles() -> Iterator[HostileRequest]:
    values = bytes(16 * 4)
    yield binary("ensemble a shape of 2**62", "three", [("VALUES", "FP32", [2**31, 2**31], values)])
    yield binary("ensemble a negative shape", "three", [("VALUES", "FP32", [-16], values)])
    yield binary("ensemble another datatype", "three", [("VALUES", "INT64", [8], values)])
    yield binary("ensemble an input twice", "three", [("VALUES", "FP32", [16], values)] * 2)
    yield binary("ensemble too few bytes", "three", [("VALUES", "FP32", [17], values)])
    yield binary("ensemble no input", "three", [])
    yield binary("ONNX a batch of 17", "linear", [("VALUES", "FP32", [17, 16], bytes(17 * 64))])
    yield binary("ONNX another shape", "linear", [("VALUES", "FP32", [1, 15], bytes(60))])
    yield HostileRequest("ensemble deep JSON", "/v2/models/three/infer", b'{"inputs": ' + b"[" * DEEP, allowed=TRITON)
    told = {"NUMBER": [1], "STREAM": [True], "temperature": float("nan")}
    yield HostileRequest("ensemble NaN for its language model", "/v2/models/told/generate_stream", json_bytes(told))


def of_loads() -> Iterator[HostileRequest]:
    """Loads with a configuration that cannot be served."""
    step = {"model_name": "plus", "model_version": -1, "input_map": {"VALUES": "VALUES"}, "output_map": {}}
    tensors = {
        "input": [{"name": "VALUES", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "SCALED", "data_type": "TYPE_FP32", "dims": [-1]}],
    }

    def chain(count: int) -> list[dict[str, Any]]:
        names = ["VALUES", *(f"t{number}" for number in range(count - 1)), "SCALED"]
        return [
            step | {"input_map": {"VALUES": taken}, "output_map": {"SCALED": given}}
            for taken, given in itertools.pairwise(names)
        ]

    itself = chain(1)[0] | {"model_name": "three"}
    circle = [chain(1)[0] | {"input_map": {"VALUES": "a"}, "output_map": {"SCALED": "b"}}]
    circle.append(chain(1)[0] | {"input_map": {"VALUES": "b"}, "output_map": {"SCALED": "a"}})
    for name, steps in {
        "no steps": [],
        "steps that are text": "plus",
        "a step that is a number": [7],
        "outputs of nobody": [step],
        "itself": [itself],
        "a circle": [*circle, *chain(1)],
        "an unknown model": [chain(1)[0] | {"model_name": "nobody"}],
        "a name that leaves the folder": [chain(1)[0] | {"model_name": "../../etc"}],
        "version 2**70": [chain(1)[0] | {"model_version": 2**70}],
        "version 99": [chain(1)[0] | {"model_version": 99}],
        "a tensor of two steps": [*chain(1), *chain(1)],
        "an input that the model has not": [chain(1)[0] | {"input_map": {"NOBODY": "VALUES"}}],
        "maps that are lists": [chain(1)[0] | {"input_map": ["VALUES"]}],
    }.items():
        config = {"name": "three", "platform": "ensemble", **tensors, "ensemble_scheduling": {"step": steps}}
        yield load(f"config {name}", "three", json.dumps(config))
    long = {"name": "three", "platform": "ensemble", **tensors, "ensemble_scheduling": {"step": chain(20_000)}}
    yield load("config 20000 steps", "three", json.dumps(long))
    most = {"name": "three", "platform": "ensemble", **tensors, "ensemble_scheduling": {"step": chain(1000)}}
    yield load("config 1000 steps", "three", json.dumps(most), allowed=(200,))
    for name, text in {
        "deep": "[" * DEEP,
        "cut short": '{"name": "three"',
        "null": "null",
        "max_batch_size 2**70": json.dumps({"name": "plus", "backend": "python", **tensors, "max_batch_size": 2**70}),
        "dims -7": json.dumps({"name": "plus", "backend": "python", "input": [{"name": "VALUES", "dims": [-7]}]}),
    }.items():
        yield load(f"config {name}", "plus", text)
    for name in ("cut_onnx", "no_onnx", "cut_json", "deep_json", "odd_json", "list_json", "engine_json"):
        yield HostileRequest(f"load {name}", f"/v2/repository/models/{name}/load", b"")
