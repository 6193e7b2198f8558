"""The model repository that `bench_kserve.py` serves: small Python models, of which some do no work, and ensembles of
three of them, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
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
STEPS = 3
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
ENSEMBLES = {  # name -> the model of which each step has a copy of its own, with its batching
    "three_steps": ("add_sub", ONE_ROW),
    "three_steps_batching": ("add_sub_batching", BATCHING),
    "three_busy_steps": ("busy", BATCHING),
}


def write_repository(folder: Path, ensembles: Iterable[str] = tuple(ENSEMBLES)) -> None:
    """Writes all models below `folder`, and these ensembles with their models."""
    for name, (config, code) in MODELS.items():
        write_model(folder, name, config, code)
    for name in ensembles:
        model, batching = ENSEMBLES[name]
        for step in range(STEPS):
            write_model(folder, f"{name}_{step}", *MODELS[model])
        (folder / name / "1").mkdir(parents=True)
        size = batching.partition("\n")[0]
        (folder / name / "config.pbtxt").write_text(f'platform: "ensemble"\n{size}\n{FOUR}{steps_of(name)}')


def write_model(folder: Path, name: str, config: str, code: str) -> None:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text('backend: "python"\n' + config)
    (version / "model.py").write_text(code)


def steps_of(ensemble: str) -> str:
    """Sum and difference of one step are the inputs of the next."""
    steps = []
    for step in range(STEPS):
        a, b = ("A", "B") if step == 0 else (f"SUM{step}", f"DIFF{step}")
        total, difference = ("SUM", "DIFF") if step == STEPS - 1 else (f"SUM{step + 1}", f"DIFF{step + 1}")
        steps.append(
            f'step {{ model_name: "{ensemble}_{step}" model_version: -1\n'
            f'input_map {{ key: "A" value: "{a}" }} input_map {{ key: "B" value: "{b}" }}\n'
            f'output_map {{ key: "SUM" value: "{total}" }} output_map {{ key: "DIFF" value: "{difference}" }} }}\n'
        )
    return f"ensemble_scheduling {{\n{''.join(steps)}}}\n"
