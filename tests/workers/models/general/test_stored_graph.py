"""A graph that was checked once is kept, and is the same model in another worker, which does without transformers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.kernels.cpu.native_library import native_library
from slipstream.router.model_files.file_digest import FilesChanged
from slipstream.workers.models.description.result_cache import key_of
from slipstream.workers.models.general import checked_model, stored_graph
from slipstream.workers.models.general.describe import describe
from slipstream.workers.models.general.execution.captured_model import CapturedModel
from slipstream.workers.models.general.flat_model import FlatModel
from slipstream.workers.models.general.general_loader import load_general
from slipstream.workers.models.general.self_check import GeneralModel, SelfCheckError
from slipstream.workers.models.general.stored_graph import MOST_KEPT
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.weights.weight_cache import HEADER_BYTES
from tests.support.workers.general_models import build_general_model

PAGE_TOKENS = 8
pytestmark = pytest.mark.skipif(native_library() is None, reason="no native kernels here")


def load(model_dir: Path, cache_dir: Path) -> GeneralModel:
    model: GeneralModel = load_general(  # type: ignore[assignment]
        model_dir,
        describe(model_dir),
        dtype=torch.float32,
        device=torch.device("cpu"),
        page_tokens=PAGE_TOKENS,
        tp=TensorParallel(),
        library=native_library(),
        cache_dir=cache_dir,
    )
    return model


def scores(model: GeneralModel) -> torch.Tensor:
    num_groups = len(model.spec.kv.page_groups.windows)
    pool = torch.zeros(kv_shape(model.spec, model.tp, 4 * num_groups, PAGE_TOKENS), dtype=model.dtype)
    runs = [torch.arange(4 * group, 4 * group + 4, dtype=torch.int32).numpy().tobytes() for group in range(num_groups)]
    new = SequenceSlice(0, tuple(range(3, 31)), runs[0], True, tuple(runs[1:]))
    found = model.scores(StepBatch.build([new], PAGE_TOKENS), pool)
    assert found is not None
    return found.clone()


@pytest.mark.parametrize("kind", ["llama", "gemma2", "phi", "gpt_oss", "deepseek_v3"])
def test_a_kept_graph_computes_the_same_bits(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_dir = build_general_model(kind, tmp_path / "model")
    made = load(model_dir, tmp_path / "cache")
    monkeypatch.delattr(checked_model, "load_checked")  # it would make the graph again
    kept = load(model_dir, tmp_path / "cache")
    assert isinstance(kept, CapturedModel)
    assert torch.equal(scores(kept), scores(made))


def test_a_worker_that_finds_a_graph_does_not_import_transformers(tmp_path: Path) -> None:
    model_dir = build_general_model("llama", tmp_path / "model")
    load(model_dir, tmp_path / "cache")
    code = f"""
import sys
from pathlib import Path
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, read_spec
spec = read_spec(Path({str(model_dir)!r}), "transformers", in_subprocess=True)
cache = {str(tmp_path / "cache")!r}
config = EngineConfig(model_impl="transformers", page_tokens={PAGE_TOKENS}, weight_cache_dir=cache)
print(type(build_runner({str(model_dir)!r}, config, 9, spec=spec).model).__name__, "transformers" in sys.modules)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["CapturedModel", "False"]


def test_another_configuration_has_another_graph(tmp_path: Path) -> None:
    model_dir = build_general_model("llama", tmp_path / "model")
    before = scores(load(model_dir, tmp_path / "cache"))
    config = model_dir / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.1'))
    assert not torch.equal(scores(load(model_dir, tmp_path / "cache")), before)


def test_a_graph_that_fails_the_check_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_dir = build_general_model("llama", tmp_path / "model")
    own_check = checked_model.check_scores

    def refuses_graphs(general: GeneralModel, expected: torch.Tensor, page_tokens: int) -> None:
        if isinstance(general, CapturedModel):
            raise SelfCheckError("off")
        own_check(general, expected, page_tokens)

    monkeypatch.setattr(checked_model, "check_scores", refuses_graphs)
    for _ in range(2):
        assert isinstance(load(model_dir, tmp_path / "cache"), FlatModel)
    assert not list((tmp_path / "cache").glob("*.weights"))


@pytest.mark.parametrize(("module", "step"), [(stored_graph, "fill_constants"), (checked_model, "check_scores")])
def test_no_graph_of_files_that_change_meanwhile_is_kept(
    module: Any, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = build_general_model("llama", tmp_path / "model")
    own_step = getattr(module, step)

    def exchanges_weights(*args: Any) -> None:
        own_step(*args)
        (tmp_path / "other").write_bytes((model_dir / "model.safetensors").read_bytes())
        (tmp_path / "other").rename(model_dir / "model.safetensors")

    monkeypatch.setattr(module, step, exchanges_weights)
    with pytest.raises(FilesChanged, match=r"model\.safetensors was changed while the model was loaded"):
        load(model_dir, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.weights"))


def replace_text(content: bytes, text: bytes) -> bytes:
    """The file with another text of the same length."""
    return content[:HEADER_BYTES] + text.ljust(len(content) - HEADER_BYTES)


def test_a_damaged_graph_is_made_anew(tmp_path: Path) -> None:
    model_dir = build_general_model("llama", tmp_path / "model")
    expected = scores(load(model_dir, tmp_path / "cache"))
    (path,) = (path for path in (tmp_path / "cache").glob("*.weights") if b'"graph"' in path.read_bytes())
    content = path.read_bytes()
    without_input = re.sub(rb'"inputs\\": \[\d', b'"inputs\\": [9', content)
    assert without_input != content
    for damaged in (replace_text(content, b"[]"), replace_text(content, b'{"graph": 1}'), without_input):
        path.write_bytes(damaged)
        assert torch.equal(scores(load(model_dir, tmp_path / "cache")), expected)
        assert path.read_bytes()[HEADER_BYTES:] == content[HEADER_BYTES:]


def test_weights_of_earlier_installations_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_dir = build_general_model("llama", tmp_path / "model")

    def sizes() -> list[int]:
        """Of the constants, which are larger than the texts."""
        return [size for path in (tmp_path / "cache").glob("*.weights") if (size := path.stat().st_size) > 200_000]

    for version in range(MOST_KEPT + 2):
        monkeypatch.setattr(
            stored_graph, "key_of", lambda what, parts, own=bytes([version]): key_of(what, [*parts, own])
        )
        load(model_dir, tmp_path / "cache")
        assert len(sizes()) == min(version + 1, MOST_KEPT)
    monkeypatch.delattr(checked_model, "load_checked")
    load(model_dir, tmp_path / "cache")
