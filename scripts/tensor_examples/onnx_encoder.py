"""A sentence encoder in ONNX, small enough to be written in a moment: a vector for each token, and nothing else.

The vectors are random, so that the mean of a text's vectors says which tokens it has (a random projection of its bag of
tokens): texts with many tokens in common are near each other. Frequent tokens, which have low ids, count less.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

SIZE = 128
CONFIG = 'backend: "onnxruntime" max_batch_size: 32 dynamic_batching { max_queue_delay_microseconds: 500 }\n'
OPSET = 17


def write_encoder(folder: Path, tokenizer: Path, size: int = SIZE) -> None:
    """Writes the model into `folder`, with the tokenizer of another model directory beside it."""
    from onnx import TensorProto, helper, numpy_helper, save_model  # an optional extra

    version = folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(tokenizer / "tokenizer.json", version / "tokenizer.json")
    (version / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512}))
    vocabulary = json.loads((version / "tokenizer.json").read_text("utf-8"))
    num_tokens = 1 + max(
        [*vocabulary["model"]["vocab"].values(), *(token["id"] for token in vocabulary.get("added_tokens", []))]
    )
    ranks = np.arange(num_tokens, dtype=np.float32)[:, None]
    vectors = np.random.default_rng(0).standard_normal((num_tokens, size), dtype=np.float32) * np.log2(2 + ranks)
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "tokens"])
    states = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "tokens", size])
    nodes = [
        helper.make_node("Gather", ["vectors", "input_ids"], ["gathered"]),
        helper.make_node("Cast", ["attention_mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last_axis"], ["column"]),
        helper.make_node("Mul", ["gathered", "column"], ["last_hidden_state"]),
    ]
    constants = [
        numpy_helper.from_array(vectors, "vectors"),
        numpy_helper.from_array(np.array([-1], np.int64), "last_axis"),
    ]
    graph = helper.make_graph(nodes, "encoder", [ids, mask], [states], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    save_model(model, version / "model.onnx")
    (folder / "config.pbtxt").write_text(CONFIG)
