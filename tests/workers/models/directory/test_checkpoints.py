"""Checkpoints whose files contradict each other: the same logits as transformers, or a refusal that names the tensor,
key or file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.weight_files import INDEX_FILE, SINGLE_FILE, WeightFiles
from slipstream.workers.models.model_loader import load_model
from slipstream.workers.models.sharding.rank_share import RankShare
from slipstream.workers.models.sharding.tensor_check import check_tensors
from tests.support.workers.any_model import KINDS, load
from tests.support.workers.paged_run import PagedRun

EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
QUERY = "model.layers.0.self_attn.q_proj"

Tensors = dict[str, Tensor]


@pytest.fixture
def copy_of(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a tiny model that a test may spoil."""
    return lambda family: Path(shutil.copytree(tiny_model_dir(family), tmp_path / family))


def edit_config(model_dir: Path, **changes: Any) -> None:
    path = model_dir / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(model_dir: Path, change: Callable[[Tensors], Any]) -> None:
    tensors = load_file(model_dir / SINGLE_FILE)
    change(tensors)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, model_dir / SINGLE_FILE, {"format": "pt"}
    )


def write_index(model_dir: Path, file_of: dict[str, str]) -> None:
    (model_dir / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": file_of}))


def split(model_dir: Path) -> dict[str, str]:
    """Replaces the single file by two shards and their index; returns the index."""
    tensors = load_file(model_dir / SINGLE_FILE)
    file_of = {name: f"{'ab'[place % 2]}.safetensors" for place, name in enumerate(sorted(tensors))}
    for file in ("a.safetensors", "b.safetensors"):
        save_file({n: t for n, t in tensors.items() if file_of[n] == file}, model_dir / file, {"format": "pt"})
    (model_dir / SINGLE_FILE).unlink()
    write_index(model_dir, file_of)
    return file_of


def assert_as_transformers(model_dir: Path) -> None:
    token_ids = torch.randint(0, 259, (40,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        expected = model(token_ids[None]).logits[0]
    for kind in KINDS:
        got = PagedRun(load(kind, model_dir)).step({"a": token_ids.tolist()})
        assert got is not None
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)


def check(model_dir: Path) -> None:
    check_tensors(ModelConfig.read(model_dir), WeightFiles.read(model_dir))


def assert_refused(model_dir: Path, sentence: str) -> None:
    """Both by the check, which reads headers only, and by the load."""
    for refuse in (check, load_model):
        with pytest.raises(ModelError, match=sentence):
            refuse(model_dir)


def test_a_tied_config_does_not_replace_a_head_of_its_own(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama")
    edit_config(model_dir, tie_word_embeddings=True)
    assert_as_transformers(model_dir)


def test_a_tied_head_may_be_stored_twice(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama_tied")
    rewrite(model_dir, lambda tensors: tensors.update({LM_HEAD: tensors[EMBEDDING].clone()}))
    assert_as_transformers(model_dir)


def test_a_tied_head_is_the_embedding_where_only_it_is_stored(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama_tied")
    rewrite(model_dir, lambda tensors: tensors.update({LM_HEAD: tensors.pop(EMBEDDING)}))
    assert_as_transformers(model_dir)


def test_a_whole_file_counts_before_an_index_and_its_shards(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama")
    write_index(model_dir, {LM_HEAD: "gone.safetensors"})
    assert_as_transformers(model_dir)
    tensors = load_file(model_dir / SINGLE_FILE)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, model_dir / "gone.safetensors", {"format": "pt"})
    assert_as_transformers(model_dir)


def test_of_an_index_only_the_files_count(copy_of: Callable[[str], Path]) -> None:
    """Not in which of them it says that a tensor is, nor which tensors it speaks of."""
    model_dir = copy_of("llama")
    file_of = split(model_dir)
    assert_as_transformers(model_dir)
    wrong = {"a.safetensors": "b.safetensors", "b.safetensors": "a.safetensors"}
    write_index(model_dir, {"unknown": "a.safetensors", **{name: wrong[file_of[name]] for name in list(file_of)[2:]}})
    assert_as_transformers(model_dir)


def test_files_beside_the_model_are_left_alone(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama")
    split(model_dir)
    save_file({LM_HEAD: torch.zeros(2)}, model_dir / "consolidated.safetensors")
    assert_as_transformers(model_dir)


def test_a_tensor_in_two_shards_is_refused(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama")
    split(model_dir)
    shard = model_dir / "b.safetensors"
    save_file(load_file(shard) | load_file(model_dir / "a.safetensors"), shard)
    assert_refused(model_dir, r"tensor lm_head\.weight is in two files, a\.safetensors and b\.safetensors")


def test_a_shard_that_is_gone_is_refused(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama")
    split(model_dir)
    (model_dir / "b.safetensors").unlink()
    assert_refused(model_dir, r"b\.safetensors does not exist, though model\.safetensors\.index\.json names it")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("pytorch_model.bin", "convert it to safetensors"),
        ("consolidated.safetensors", "Mistral's or Meta's own layout"),
        ("model.fp16.safetensors", r"only model\.safetensors, or what model\.safetensors\.index\.json names, is read"),
        ("model.Q4_K_M.gguf", "Hugging Face layout"),
        ("adapter_model.safetensors", "merge the adapter"),
    ],
)
def test_weights_in_another_form_are_named(copy_of: Callable[[str], Path], name: str, advice: str) -> None:
    model_dir = copy_of("llama")
    (model_dir / SINGLE_FILE).rename(model_dir / name)
    assert_refused(model_dir, rf"has neither .*, only {name}: .*{advice}")


def test_an_adapter_beside_a_whole_model_is_refused(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama")
    (model_dir / "adapter_config.json").write_text("{}")
    assert_refused(model_dir, r"adapter_config\.json: an adapter cannot be served")


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.rotary_emb.inv_freq", "v_head.summary.weight", f"{QUERY}.bias", f"{QUERY}.input_scale"],
)
def test_tensors_that_would_change_nothing_are_ignored(copy_of: Callable[[str], Path], name: str) -> None:
    model_dir = copy_of("llama")
    rewrite(model_dir, lambda tensors: tensors.update({name: torch.zeros(64)}))
    assert_as_transformers(model_dir)


@pytest.mark.parametrize(
    ("family", "changes", "extra", "sentence"),
    [
        ("llama", {}, {f"{QUERY}.bias": (64,)}, rf"tensor {QUERY}\.bias is not zero, .*attention_bias"),
        ("llama_biased", {"mlp_bias": False}, {}, r"tensor .*mlp\.down_proj\.bias is not zero, .*mlp_bias"),
        (
            "llama",
            {},
            {"model.layers.0.self_attn.q_norm.weight": (16,)},
            r"q_norm\.weight is no part of the llama model",
        ),
        ("llama", {"num_hidden_layers": 2}, {}, r"model\.layers\.2\..* config\.json says num_hidden_layers = 2"),
        ("llama", {"num_hidden_layers": 4}, {}, r"tensor model\.layers\.3\..* is missing"),
        ("llama", {"attention_bias": True}, {}, rf"tensor {QUERY}\.bias is missing"),
        ("llama_tied", {"tie_word_embeddings": False}, {}, r"tensor lm_head\.weight is missing"),
        (
            "llama_tied",
            {},
            {LM_HEAD: (300, 64)},
            r"lm_head\.weight has shape \[300, 64\], config\.json asks for \[259, 64\]",
        ),
        (
            "llama",
            {"vocab_size": 300},
            {},
            r"embed_tokens\.weight has shape \[259, 64\], config\.json asks for \[300, 64\]",
        ),
        ("qwen3", {"head_dim": None}, {}, r"q_norm\.weight has shape \[32\], config\.json asks for \[128\]"),
        ("llama", {}, {"model.vision.weight": (4,)}, r"tensor model\.vision\.weight is no part of the llama model"),
    ],
)
def test_tensors_that_do_not_fit_config_json_are_refused(
    copy_of: Callable[[str], Path],
    family: str,
    changes: dict[str, Any],
    extra: dict[str, tuple[int, ...]],
    sentence: str,
) -> None:
    model_dir = copy_of(family)
    edit_config(model_dir, **changes)
    rewrite(model_dir, lambda tensors: tensors.update({name: torch.ones(shape) for name, shape in extra.items()}))
    assert_refused(model_dir, sentence)


def test_more_layers_than_tensors_are_refused_before_any_is_looked_for(
    copy_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = copy_of("llama")
    edit_config(model_dir, num_hidden_layers=9_999)
    monkeypatch.setattr(RankShare, "of", None)
    with pytest.raises(
        ModelError, match=r"num_hidden_layers: must be at most the \d+ tensors that there are, got 9999"
    ):
        check(model_dir)


def test_a_layer_whose_number_has_thousands_of_digits_is_refused(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama")
    rewrite(model_dir, lambda tensors: tensors.update({f"model.layers.{'1' * 5000}.x.weight": torch.ones(4)}))
    with pytest.raises(ModelError, match="is of a layer that the model does not have"):
        check(model_dir)


def test_bytes_after_the_last_tensor_are_refused(copy_of: Callable[[str], Path]) -> None:
    model_dir = copy_of("llama")
    with (model_dir / SINGLE_FILE).open("ab") as file:
        file.write(b"x" * 10)
    assert_refused(model_dir, r"model\.safetensors is (truncated or )?damaged")


@pytest.mark.parametrize("shift", [-4, 4])
def test_tensors_that_overlap_or_leave_a_hole_are_refused(copy_of: Callable[[str], Path], shift: int) -> None:
    """The largest offsets stay, so that the file is as long as its header says."""
    model_dir = copy_of("llama")
    content = (model_dir / SINGLE_FILE).read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    first = next(entry for name, entry in header.items() if name != "__metadata__" and entry["data_offsets"][0] > 0)
    first["data_offsets"] = [offset + shift for offset in first["data_offsets"]]
    changed = json.dumps(header).encode()
    (model_dir / SINGLE_FILE).write_bytes(len(changed).to_bytes(8, "little") + changed + content[end:])
    assert_refused(model_dir, r"model\.safetensors is (truncated or )?damaged")


@pytest.mark.parametrize("shape", [[1e400], [0.5], ["x"]])
def test_a_header_with_odd_numbers_is_refused(copy_of: Callable[[str], Path], shape: list[Any]) -> None:
    model_dir = copy_of("llama")
    header = json.dumps({LM_HEAD: {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    (model_dir / SINGLE_FILE).write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(ModelError, match=r"model\.safetensors is no safetensors file"):
        check(model_dir)


@pytest.mark.parametrize("name", [SINGLE_FILE, "a.safetensors"])
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (os.mkfifo, "is no regular file"),
        (Path.mkdir, "is no regular file"),
        (lambda path: path.symlink_to("gone"), "is a link to a file that does not exist"),
    ],
    ids=["pipe", "folder", "link to nothing"],
)
def test_weights_that_are_no_regular_file_are_refused(
    copy_of: Callable[[str], Path], name: str, make: Callable[[Path], Any], sentence: str
) -> None:
    model_dir = copy_of("llama")
    if name != SINGLE_FILE:
        split(model_dir)
    (model_dir / name).unlink()
    make(model_dir / name)
    assert_refused(model_dir, rf"{name} {sentence}")
