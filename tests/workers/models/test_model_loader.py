"""Reading safetensors: single and sharded, cast on the way, damage found and named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.model_loader import load_model
from tests.support.workers.paged_run import PagedRun
from tests.support.workers.tiny_models import build_tiny_model

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def model_dir(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tiny_model_dir("llama"), tmp_path / "llama"))


@pytest.fixture
def sharded_dir(tmp_path: Path) -> Path:
    model_dir = build_tiny_model("llama", tmp_path / "sharded", max_shard_size="100KB")
    assert len(list(model_dir.glob("*.safetensors"))) > 2
    return model_dir


def rewrite(model_dir: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(model_dir / SINGLE)
    change(tensors)
    save_file(tensors, model_dir / SINGLE)


def test_shards_and_a_single_file_are_the_same_model(model_dir: Path, sharded_dir: Path) -> None:
    logits = [PagedRun(load_model(d)).step({"a": [3, 1, 2]}) for d in (model_dir, sharded_dir)]
    assert logits[0] is not None
    assert logits[1] is not None
    assert torch.equal(logits[0], logits[1])


def test_weights_take_the_dtype_asked_for_or_else_that_of_the_config(model_dir: Path) -> None:
    assert load_model(model_dir).dtype == torch.float32
    half = load_model(model_dir, dtype=torch.bfloat16)
    assert half.dtype == half.decoder.weights.layers[0].qkv.weight.dtype == torch.bfloat16
    stored = load_file(model_dir / SINGLE)["model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(half.decoder.weights.layers[0].qkv.weight.to_dense()[: len(stored)], stored.bfloat16())


def test_tied_embeddings_score_with_the_embedding(tiny_model_dir: Callable[[str], Path]) -> None:
    weights = load_model(tiny_model_dir("llama_tied")).decoder.weights
    assert torch.equal(weights.lm_head.to_dense(), weights.embedding)


def test_serving_does_not_import_transformers(model_dir: Path) -> None:
    program = (
        "import sys; from slipstream.workers.models.model_loader import load_model; load_model(sys.argv[1]); "
        "sys.exit('transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, model_dir], check=True, timeout=60)


def test_no_weights_at_all(model_dir: Path) -> None:
    (model_dir / SINGLE).unlink()
    with pytest.raises(ModelError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        load_model(model_dir)


@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_truncated_file(model_dir: Path, kept: int) -> None:
    content = (model_dir / SINGLE).read_bytes()
    (model_dir / SINGLE).write_bytes(content[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors is (truncated|no safetensors file)"):
        load_model(model_dir)


def test_missing_shard(sharded_dir: Path) -> None:
    shard = sorted(sharded_dir.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelError, match=rf"{shard.name} does not exist"):
        load_model(sharded_dir)


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ("{", "is not valid JSON"),
        ("{}", "weight_map: must name"),
        (json.dumps({"weight_map": {"a": "../x.safetensors"}}), r"weight_map.a: must be a file name"),
        (json.dumps({"weight_map": {"a": 3}}), r"weight_map.a: must be a file name"),
    ],
)
def test_broken_index(sharded_dir: Path, index: str, problem: str) -> None:
    (sharded_dir / INDEX).write_text(index)
    with pytest.raises(ModelError, match=rf"index\.json:? {problem}"):
        load_model(sharded_dir)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.norm.weight"])
def test_missing_tensor(model_dir: Path, name: str) -> None:
    rewrite(model_dir, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelError, match=rf"tensor {name} is missing"):
        load_model(model_dir)


def test_misshaped_tensor(model_dir: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    rewrite(model_dir, lambda tensors: tensors.update({name: torch.zeros(16, 64)}))
    with pytest.raises(ModelError, match=rf"tensor {name} has shape \[16, 64\], config\.json asks for \[32, 64\]"):
        load_model(model_dir)


def test_tensor_of_whole_numbers(model_dir: Path) -> None:
    name = "model.norm.weight"
    rewrite(model_dir, lambda tensors: tensors.update({name: torch.zeros(64, dtype=torch.int8)}))
    with pytest.raises(ModelError, match=rf"tensor {name} has unsupported dtype I8"):
        load_model(model_dir)
