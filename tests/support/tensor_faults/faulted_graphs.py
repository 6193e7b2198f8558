"""What a campaign serves beside the models of Python: ensembles, a language model, models in ONNX, and two versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from scripts.tensor_examples.onnx_encoder import write_encoder
from tests.support.e2e.serving_cluster import DEMO_MODEL
from tests.support.tensor_faults.faulted_models import ANSWER_EACH, HEAD, VALUES

MAX_TOKENS = 12
ENGINE = {"max_model_len": 512, "max_num_seqs": 8, "dtype": "float32"}
STEP = """
    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCALED", {expression})])
"""
PROMPT = """
    def answer(self, request):
        number = int(pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy().item())
        return pb_utils.InferenceResponse([pb_utils.Tensor("PROMPT", np.array([f"def read_{number}("], object))])
"""
VERSION = """
    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCALED", values * {version})])
"""
PROMPT_CONFIG = """
input { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "PROMPT" data_type: TYPE_STRING dims: [ 1 ] }
"""
PYTHON = {  # name -> configuration, code of each version
    "plus": (VALUES, [ANSWER_EACH + STEP.format(expression="values + 1")]),  # this one is loaded again and again
    "twice": (f"{VALUES} dynamic_batching {{ }}", [ANSWER_EACH + STEP.format(expression="values * 2")]),
    "minus": (VALUES, [ANSWER_EACH + STEP.format(expression="values - 3")]),
    "prompt": (PROMPT_CONFIG, [ANSWER_EACH + PROMPT]),
    "split": (
        f"{VALUES} version_policy {{ all {{ }} }}",
        [ANSWER_EACH + VERSION.format(version=1), ANSWER_EACH + VERSION.format(version=2)],
    ),
}
PLUS_JSON = {
    "name": "plus",
    "backend": "python",
    "input": [{"name": "VALUES", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "SCALED", "data_type": "TYPE_FP32", "dims": [-1]}],
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}
MAPPED = (
    'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "{of}" value: "{taken}" }} '
    'output_map {{ key: "{to}" value: "{given}" }} }}'
)
THREE = " ".join(
    MAPPED.format(model=model, of="VALUES", taken=taken, to="SCALED", given=given)
    for model, taken, given in (("plus", "VALUES", "more"), ("twice", "more", "most"), ("minus", "most", "SCALED"))
)
TOLD = f"""
platform: "ensemble"
input [
  {{ name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "STREAM" data_type: TYPE_BOOL dims: [ 1 ] optional: true }}
]
output {{ name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }}
model_transaction_policy {{ decoupled: true }}
ensemble_scheduling {{
  {MAPPED.format(model="prompt", of="NUMBER", taken="NUMBER", to="PROMPT", given="prompt")}
  step {{ model_name: "story" model_version: -1
    input_map {{ key: "text_input" value: "prompt" }} input_map {{ key: "stream" value: "STREAM" }}
    output_map {{ key: "text_output" value: "TEXT" }} }}
}}
"""
LINEAR = """
backend: "onnxruntime"
max_batch_size: 16
input { name: "VALUES" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "SCALED" data_type: TYPE_FP32 dims: [ 16 ] }
dynamic_batching { max_queue_delay_microseconds: 500 }
instance_group { count: 1 kind: KIND_CPU }
"""
TOKENS = """
backend: "tensorrtllm"
max_batch_size: 8
input [
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "stop_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true },
  { name: "bad_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true },
  { name: "beam_width" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true },
  { name: "runtime_top_p" data_type: TYPE_FP32 dims: [ 1 ] optional: true },
  { name: "runtime_top_k" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "num_return_sequences" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
]
output [
  { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] },
  { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }
]
"""
ONE_INSTANCE = "instance_group { count: 1 kind: KIND_CPU }"
NUM_GRAPH_INSTANCES = 4 + 2 + 2  # three steps and the prompt, two versions, two in ONNX
GRAPH_SETTINGS: dict[str, Any] = {  # of `repository`
    "versions": {"split": {"split": {"1": 50, "2": 50}}},
    "endpoints": {"embeddings": {"encoder": {}}},
}


def write_graphs(folder: Path) -> None:
    for name, (config, codes) in PYTHON.items():
        for number, code in enumerate(codes, 1):
            _write(folder / name / str(number) / "model.py", HEAD + code)
        _write(folder / name / "config.pbtxt", f'backend: "python" {config} {ONE_INSTANCE}')
    for name, config in (("three", f'platform: "ensemble" {VALUES} ensemble_scheduling {{ {THREE} }}'), ("told", TOLD)):
        (folder / name / "1").mkdir(parents=True)
        _write(folder / name / "config.pbtxt", config)
    _write(folder / "story" / "config.pbtxt", 'backend: "vllm" instance_group { count: 1 kind: KIND_MODEL }')
    _write(folder / "story" / "1" / "model.json", json.dumps({"model": str(DEMO_MODEL), **ENGINE}))
    write_linear(folder / "linear")
    write_encoder(folder / "encoder", DEMO_MODEL)
    with (folder / "encoder" / "config.pbtxt").open("a") as config_file:
        config_file.write(ONE_INSTANCE)


def write_linear(folder: Path) -> None:
    """Twice the input and one, in ONNX."""
    from onnx import TensorProto, helper, numpy_helper, save_model  # an optional extra

    given = helper.make_tensor_value_info("VALUES", TensorProto.FLOAT, ["batch", 16])
    answered = helper.make_tensor_value_info("SCALED", TensorProto.FLOAT, ["batch", 16])
    nodes = [
        helper.make_node("Mul", ["VALUES", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "one"], ["SCALED"]),
    ]
    constants = [numpy_helper.from_array(np.float32([n]), name) for name, n in (("one", 1), ("two", 2))]
    graph = helper.make_graph(nodes, "linear", [given], [answered], constants)
    (folder / "1").mkdir(parents=True)
    save_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        folder / "1" / "model.onnx",
    )
    _write(folder / "config.pbtxt", LINEAR)


def through_three(values: np.ndarray) -> np.ndarray:
    return (values + 1) * 2 - 3


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
