"""Weights that workers share: views of files, not memory of each process, whatever transformers converts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from slipstream.router.model_files.file_digest import FilesChanged
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.general import shared_weights
from slipstream.workers.models.general.pretrained import load_pretrained
from slipstream.workers.models.general.shared_weights import load_shared, private_bytes
from tests.support.workers.general_models import build_general_model


@pytest.fixture(autouse=True)
def _share_tiny_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_weights, "MIN_SHARED_BYTES", 1)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores experts one by one, which transformers stacks. Two of its names are one tensor."""
    model_dir = tmp_path_factory.mktemp("mixtral")
    return build_general_model("mixtral", model_dir, num_local_experts=4, tie_word_embeddings=True)


@torch.inference_mode()
def scores(model: PreTrainedModel) -> Tensor:
    found: Tensor = model(input_ids=torch.arange(20)[None]).logits
    return found


def share(model_dir: Path, directory: Path | None, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return load_shared(model_dir, dtype, False, directory, None)


def test_converted_weights_are_written_once_and_mapped(
    mixtral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load_pretrained(mixtral, torch.float32)
    assert private_bytes(plain) > 0
    first = share(mixtral, tmp_path)
    monkeypatch.setattr(shared_weights, "load_pretrained", None)  # nothing converts them once more
    second = share(mixtral, tmp_path)
    for model in (first, second):
        assert torch.equal(scores(model), scores(plain))
        assert private_bytes(model) == 0
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight  # type: ignore[no-untyped-call]
    assert len(list(tmp_path.glob("*.weights"))) == 1


def test_nothing_is_kept_of_files_that_change_while_they_are_converted(
    mixtral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = Path(shutil.copytree(mixtral, tmp_path / "model"))

    def loaded_and_exchanged(*args: Any) -> PreTrainedModel:
        model = load_pretrained(*args)
        config = model_dir / "config.json"
        config.write_text(config.read_text() + " ")
        return model

    monkeypatch.setattr(shared_weights, "load_pretrained", loaded_and_exchanged)
    with pytest.raises(FilesChanged, match=r"config\.json was changed"):
        share(model_dir, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.weights"))


def test_another_dtype_is_another_file_and_other_weights_are_too(mixtral: Path, tmp_path: Path) -> None:
    share(mixtral, tmp_path / "cache")
    half = share(mixtral, tmp_path / "cache", torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert private_bytes(half) == 0
    other = build_general_model("mixtral", tmp_path / "other", num_local_experts=4, num_hidden_layers=2)
    assert torch.equal(scores(share(other, tmp_path / "cache")), scores(load_pretrained(other, torch.float32)))
    assert len(list((tmp_path / "cache").glob("*.weights"))) == 3


def test_weights_that_are_taken_as_they_are_stored_need_no_file(tmp_path: Path) -> None:
    model_dir = build_general_model("phi3", tmp_path / "phi3")
    assert private_bytes(share(model_dir, tmp_path / "cache")) == 0
    assert not list((tmp_path / "cache").glob("*.weights"))


def test_pickled_weights_are_mapped_too(tmp_path: Path) -> None:
    model_dir = build_general_model("phi3", tmp_path / "phi3")
    plain = load_pretrained(model_dir, torch.float32)
    torch.save(plain.state_dict(), model_dir / "pytorch_model.bin")
    (model_dir / "model.safetensors").unlink()
    model = share(model_dir, tmp_path / "cache")
    assert private_bytes(model) == 0
    assert torch.equal(scores(model), scores(plain))


def test_a_pickle_that_holds_code_is_refused(tmp_path: Path) -> None:
    model_dir = build_general_model("phi3", tmp_path / "phi3")
    torch.save({"lm_head.weight": Path("a class that is no tensor")}, model_dir / "pytorch_model.bin")
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(
        ModelError, match=r"pytorch_model.bin holds other things than tensors, or is damaged; only tensors are loaded"
    ):
        share(model_dir, None)
