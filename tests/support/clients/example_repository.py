"""A repository as users of Triton have it: language models, an encoder in ONNX, a pipeline, classifiers, a policy.

python -m tests.support.clients.example_repository FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from onnx import TensorProto, helper, save

DEMO = Path(__file__).resolve().parents[3] / "models" / "slipstream-demo"
WORDS = ("add", "read", "sort", "list", "file", "number", "numbers", "a", "of")  # 9

VLLM = """
backend: "vllm"
instance_group [ { count: 1 kind: KIND_MODEL } ]
parameters { key: "max_tokens" value { string_value: "8" } }
"""
TENSORRT = """
backend: "tensorrtllm"
max_batch_size: 4
input [
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] },
  { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }
]
parameters { key: "max_beam_width" value: { string_value: "1" } }
parameters { key: "scheduler_policy" value: { string_value: "max_utilization" } }
parameters { key: "max_tokens_in_paged_kv_cache" value: { string_value: "4096" } }
parameters { key: "decoding_mode" value: { string_value: "top_k_top_p" } }
"""
ENCODER = """
platform: "onnxruntime_onnx"
max_batch_size: 32
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 9 ] } ]
dynamic_batching { }
"""
RETRIEVER = """
backend: "python"
max_batch_size: 32
input [ { name: "embedding" data_type: TYPE_FP32 dims: [ 9 ] } ]
output [ { name: "context" data_type: TYPE_STRING dims: [ 1 ] } ]
dynamic_batching { }
"""
BUILDER = """
backend: "python"
max_batch_size: 32
input [
  { name: "query" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "context" data_type: TYPE_STRING dims: [ 1 ] }
]
output [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
RAG_LLM = VLLM + "max_batch_size: 32\n"
RAG = """
platform: "ensemble"
max_batch_size: 32
input [ { name: "query" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "response" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
ensemble_scheduling { step [
  { model_name: "encoder" model_version: -1
    input_map { key: "text" value: "query" } output_map { key: "embedding" value: "query_embedding" } },
  { model_name: "retriever" model_version: -1
    input_map { key: "embedding" value: "query_embedding" } output_map { key: "context" value: "found" } },
  { model_name: "prompt_builder" model_version: -1
    input_map { key: "query" value: "query" } input_map { key: "context" value: "found" }
    output_map { key: "prompt" value: "full_prompt" } },
  { model_name: "rag_llm" model_version: -1
    input_map { key: "text_input" value: "full_prompt" } output_map { key: "text_output" value: "response" } }
] }
"""
TOPICS = """
backend: "python"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
version_policy: { all { } }
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
POLICY = """
backend: "python"
max_batch_size: 32
input [ { name: "SLEEP_MS" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "ROWS" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "PID" data_type: TYPE_INT64 dims: [ 1 ] } ]
dynamic_batching {
  preferred_batch_size: [ 8, 16, 32 ]
  max_queue_delay_microseconds: 5000
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy {
    allow_timeout_override: true
    timeout_action: REJECT
    default_timeout_microseconds: 30000000
  }
}
instance_group [ { count: COUNT kind: KIND_CPU } ]
"""

RETRIEVER_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "embedding").as_numpy()
            found = np.array([[b"knows %d words" % int(row.sum())] for row in rows], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("context", found)]))
        return responses
"""
BUILDER_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            queries = pb_utils.get_input_tensor_by_name(request, "query").as_numpy()
            contexts = pb_utils.get_input_tensor_by_name(request, "context").as_numpy()
            prompts = [[b"# " + q[0] + b": " + c[0]] for q, c in zip(queries, contexts)]
            tensor = pb_utils.Tensor("prompt", np.array(prompts, dtype=object))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""
TOPICS_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            rows = len(pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy())
            scores = np.array([[0.1, 0.7, 0.2]] * rows, dtype=np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", scores)]))
        return responses
"""
POLICY_CODE = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "SLEEP_MS").as_numpy() for request in requests]
        rows = sum(len(tensor) for tensor in tensors)
        time.sleep(max(int(tensor.max()) for tensor in tensors) / 1000)
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor("ROWS", np.full((len(tensor), 1), rows, dtype=np.int32)),
                pb_utils.Tensor("PID", np.full((len(tensor), 1), os.getpid(), dtype=np.int64)),
            ])
            for tensor in tensors
        ]
"""


def write_model(folder: Path, config: str, version: str, name: str = "", text: str = "") -> None:
    (folder / version).mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config)
    if name:
        (folder / version / name).write_text(text)


def write_encoder(path: Path, words: Sequence[str] = WORDS) -> None:
    """text [n, 1] -> embedding [n, words]: how often each word occurs."""
    keys = helper.make_tensor("keys", TensorProto.STRING, [len(words)], [word.encode() for word in words])
    values = helper.make_tensor("values", TensorProto.INT64, [len(words)], list(range(len(words))))
    other = helper.make_tensor("other", TensorProto.INT64, [1], [len(words)])
    nodes = [
        helper.make_node("StringSplit", ["text"], ["split", "counts"]),
        helper.make_node(
            "LabelEncoder", ["split"], ["ids"], domain="ai.onnx.ml", keys_tensor=keys, values_tensor=values,
            default_tensor=other,
        ),
        helper.make_node("OneHot", ["ids", "depth", "off_on"], ["hot"]),
        helper.make_node("ReduceSum", ["hot", "axes"], ["sums"], keepdims=0),
        helper.make_node("Slice", ["sums", "zero", "size", "one"], ["embedding"]),
    ]  # fmt: skip
    constants = [
        helper.make_tensor("depth", TensorProto.INT64, [], [len(words) + 1]),
        helper.make_tensor("off_on", TensorProto.FLOAT, [2], [0.0, 1.0]),
        helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2]),
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        helper.make_tensor("size", TensorProto.INT64, [1], [len(words)]),
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("text", TensorProto.STRING, ["n", 1])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", len(words)])],
        initializer=constants,
    )
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
    path.parent.mkdir(parents=True)
    save(helper.make_model(graph, opset_imports=versions, ir_version=9), str(path))


def main(folder: Path) -> None:
    model_json = json.dumps({"model": str(DEMO), "max_model_len": 512})
    write_model(folder / "chat_llm", VLLM, "1", "model.json", model_json)
    write_model(folder / "chat_trt", TENSORRT, "1")
    write_model(folder / "rag_llm", RAG_LLM, "1", "model.json", '{"model": "chat_llm"}')
    write_model(folder / "rag", RAG, "1")
    write_model(folder / "retriever", RETRIEVER, "1", "model.py", RETRIEVER_CODE)
    write_model(folder / "prompt_builder", BUILDER, "1", "model.py", BUILDER_CODE)
    write_model(folder / "policy", POLICY.replace("COUNT", "1"), "1", "model.py", POLICY_CODE)
    write_model(folder / "four", POLICY.replace("COUNT", "4"), "1", "model.py", POLICY_CODE)
    for version in ("1", "2"):
        write_model(folder / "topics", TOPICS, version, "model.py", TOPICS_CODE)
    (folder / "topics" / "labels.txt").write_text("sports\nscience\nmusic\n")
    write_encoder(folder / "encoder" / "1" / "model.onnx")
    (folder / "encoder" / "config.pbtxt").write_text(ENCODER)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
