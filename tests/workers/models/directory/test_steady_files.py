"""Files that are exchanged while a worker loads them, and what was packed from them."""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.kernels.cpu.native_library import native_library
from slipstream.router.model_files.file_digest import DigestCache, FilesChanged
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.model_files.text_copy import keep_text
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.workers.config.worker_config import EngineConfig, RoleSettings, WorkerConfig
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler
from slipstream.workers.group.rank_parts import rank_parts
from slipstream.workers.models.directory.steady_files import SteadyFiles
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.native_model import NativeModel, load_native
from slipstream.workers.models.weights import packed_weights

SINGLE = "model.safetensors"
DEMO = Path(__file__).parents[4] / "models" / "slipstream-demo"
NO_CACHE = DigestCache(None)


@pytest.fixture
def model_dir(tiny_model_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(tiny_model_dir("llama"), tmp_path / "llama"))


def other_weights(model_dir: Path) -> bytes:
    """Other numbers in the last tensor of the file."""
    return (model_dir / SINGLE).read_bytes()[:-4] + os.urandom(2) * 2


def exchange_weights(model_dir: Path) -> None:
    """Another file of the same size and time takes the place of the old one."""
    stat = (model_dir / SINGLE).stat()
    new = model_dir / "new"
    new.write_bytes(other_weights(model_dir))
    os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new.rename(model_dir / SINGLE)


def overwrite_weights(model_dir: Path) -> None:
    """The bytes change within the file."""
    content = other_weights(model_dir)
    with (model_dir / SINGLE).open("r+b") as file:
        file.write(content)


def add_a_template(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("")


@pytest.mark.parametrize("change", [exchange_weights, overwrite_weights, add_a_template])
def test_files_that_change_while_they_are_loaded_are_noticed(change: Callable[[Path], None], model_dir: Path) -> None:
    files = SteadyFiles.of(model_dir)
    files.check()
    change(model_dir)
    with pytest.raises(FilesChanged, match="was changed while the model was loaded"):
        files.check()


def native(model_dir: Path, cache_dir: Path, files: SteadyFiles | None = None) -> NativeModel:
    library = native_library()
    if library is None:
        pytest.skip("no native kernels here")
    return load_native(model_dir, library, dtype=torch.float32, page_tokens=8, cache_dir=cache_dir, files=files)


@pytest.mark.parametrize("is_named", [False, True])
def test_weights_that_change_while_they_are_packed_leave_nothing_in_the_cache(
    is_named: bool, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = packed_weights._fill

    def filled_too_late(*arguments: object) -> None:
        exchange_weights(model_dir)
        fill(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_weights, "_fill", filled_too_late)
    files = SteadyFiles.verified(model_dir, Manifest.read(model_dir, NO_CACHE)) if is_named else None
    with pytest.raises(FilesChanged, match=SINGLE):
        native(model_dir, tmp_path / "packed", files)
    assert not list((tmp_path / "packed").glob("*.weights"))
    assert not list((tmp_path / "packed").glob("*.part"))


def test_packed_weights_serve_for_the_same_content_and_no_other(model_dir: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    manifest = Manifest.read(model_dir, NO_CACHE)
    native(model_dir, packed, SteadyFiles.verified(model_dir, manifest))
    (model_dir / SINGLE).touch()
    copy = shutil.copytree(model_dir, tmp_path / "copy")
    native(copy, packed, SteadyFiles.verified(copy, manifest))
    assert len(list(packed.glob("*.weights"))) == 1
    exchange_weights(model_dir)
    with pytest.raises(FilesChanged, match=f"{SINGLE} has other content now"):
        SteadyFiles.verified(model_dir, manifest)
    native(model_dir, packed, SteadyFiles.verified(model_dir, Manifest.read(model_dir, NO_CACHE)))
    assert len(list(packed.glob("*.weights"))) == 2


def test_without_a_manifest_a_file_of_the_same_size_and_time_in_the_same_place_is_another(
    model_dir: Path, tmp_path: Path
) -> None:
    native(model_dir, tmp_path / "packed")
    exchange_weights(model_dir)
    native(model_dir, tmp_path / "packed")
    assert len(list((tmp_path / "packed").glob("*.weights"))) == 2


def worker_config(model_dir: Path, manifest: Manifest) -> WorkerConfig:
    engine = EngineConfig(dtype="float32", device="cpu", num_pages=8, num_threads=1)
    other = RoleSettings(64, engine)
    return WorkerConfig(
        "decode-0",
        "decode",
        "m",
        str(model_dir),
        "127.0.0.1",
        1,
        engine=engine,
        other_role=other,
        model_version="march",
        manifest=manifest,
    )


def test_a_worker_refuses_to_load_files_of_another_version(model_dir: Path) -> None:
    config = worker_config(model_dir, Manifest.read(model_dir, NO_CACHE))
    exchange_weights(model_dir)
    sentence = f"refuses to serve version march: .*{SINGLE} has other content now"
    with pytest.raises(FilesChanged, match=sentence), rank_parts(config, TensorParallel(), lambda outcome: None):
        pass


def test_a_worker_that_takes_another_role_stays_with_what_it_has_loaded(model_dir: Path) -> None:
    config = worker_config(model_dir, Manifest.read(model_dir, NO_CACHE))
    with rank_parts(config, TensorParallel(), lambda outcome: None) as parts:
        for path in model_dir.iterdir():
            path.write_text("{}")
        limits = parts.limits_in_role(config, "prefill")
    assert limits.eos_token_ids == parts.limits.eos_token_ids
    assert limits.vocab_size == parts.limits.vocab_size


def test_a_tokenizer_that_is_read_later_is_the_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model_dir = Path(shutil.copytree(DEMO, tmp_path / "model"))
    manifest = Manifest.read(model_dir, NO_CACHE)

    def can_follow() -> bool:
        """Whether any token is allowed."""
        allowed = np.zeros(4096 // 8, np.uint8)
        book = GrammarCompiler(model_dir, 4096, [0], manifest=manifest)
        book.follow(GrammarSpec("regex", "a+"), array("i", [1]), 1).write_allowed(allowed)
        return bool(allowed.any())

    assert can_follow()
    (model_dir / "tokenizer.json").write_text("{}")
    assert not can_follow()
    assert "tokenizer.json has other content now" in caplog.text
    shutil.copy(DEMO / "tokenizer.json", model_dir)
    keep_text(model_dir, [manifest])
    (model_dir / "tokenizer.json").write_text("{}")
    assert can_follow()
