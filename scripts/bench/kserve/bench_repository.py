"""The model repository that `bench_kserve.py` serves: small Python models, of which some do no work."""

from __future__ import annotations

from pathlib import Path

FOUR = """
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "DIFF" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
ADD_SUB = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            outputs = [pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFF", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
# Takes its time on the core, as a model does, and the more of it the more rows a batch has.
BUSY = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        end = time.thread_time_ns() + 2_000_000 + 50_000 * len(requests)
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            outputs = [pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFF", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        while time.thread_time_ns() < end:
            np.dot(a, b.T)
        return responses
"""
LARGE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())]
            )
            for request in requests
        ]
"""
BATCHING = "max_batch_size: 32\ndynamic_batching { }\n"
ONE_ROW = "max_batch_size: 1\n"
MODELS = {
    "add_sub": (ONE_ROW + FOUR, ADD_SUB),
    "add_sub_two": (ONE_ROW + FOUR + "instance_group [ { count: 2 kind: KIND_CPU } ]\n", ADD_SUB),
    "add_sub_batching": (BATCHING + FOUR, ADD_SUB),
    "busy": (BATCHING + FOUR, BUSY),
    "busy_alone": (ONE_ROW + FOUR, BUSY),
    "large": (
        'input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]\n',
        LARGE,
    ),
}


def write_repository(folder: Path) -> None:
    """Writes all models below `folder`."""
    for name, (config, code) in MODELS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text('backend: "python"\n' + config)
        (version / "model.py").write_text(code)
