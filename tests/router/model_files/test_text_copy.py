"""What a router reads of a model whose files have been replaced since."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from slipstream.router.model_files.file_digest import UNUSED_DAYS, DigestCache, FilesChanged
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.model_files.text_copy import keep_text, read_text, text_folder
from slipstream.router.text.tokenizer import TokenizerFiles

DEMO = Path(__file__).parents[3] / "models" / "slipstream-demo"


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


def manifest_of(model_dir: Path) -> Manifest:
    return Manifest.read(model_dir, DigestCache(None))


def copies(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "slipstream" / "text").iterdir())


def test_what_has_changed_is_read_from_the_copy(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (model_dir / "additional_chat_templates").mkdir()
    (model_dir / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")
    first = manifest_of(model_dir)
    before = TokenizerFiles.read(model_dir)
    keep_text(model_dir, [first])
    assert read_text(model_dir, [first], TokenizerFiles.read) == before
    (copy,) = copies(tmp_path)
    assert sum(path.stat().st_size for path in copy.rglob("*")) < 2**20, "no weights"
    for path in model_dir.glob("*.json*"):
        path.unlink()
    with caplog.at_level(logging.WARNING):
        assert read_text(model_dir, [first], TokenizerFiles.read) == before
    assert "is gone: what is served is read from a copy" in caplog.text
    shutil.rmtree(model_dir)
    assert text_folder(model_dir, [first]) == copy


@pytest.mark.parametrize("is_there", [False, True])
def test_without_a_copy_that_is_what_it_should_be_other_files_are_refused(
    is_there: bool, model_dir: Path, tmp_path: Path
) -> None:
    first = manifest_of(model_dir)
    if is_there:
        keep_text(model_dir, [first])
        (copies(tmp_path)[0] / "tokenizer.json").write_text("{}")
    (model_dir / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(FilesChanged, match=r"refuses to serve .*chat_template\.jinja has other content now"):
        text_folder(model_dir, [first])


def test_the_weights_are_not_the_routers_and_the_files_of_any_version_that_is_served_will_do(model_dir: Path) -> None:
    first = manifest_of(model_dir)
    (model_dir / "model.safetensors").write_bytes(b"")
    assert text_folder(model_dir, [first]) == model_dir
    (model_dir / "config.json").write_text("{}")
    assert text_folder(model_dir, [first, manifest_of(model_dir)]) == model_dir
    assert text_folder(model_dir, []) == model_dir


def test_files_that_change_while_they_are_read_are_not_used(model_dir: Path) -> None:
    first = manifest_of(model_dir)
    keep_text(model_dir, [first])

    def read(folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")

    with pytest.raises(FilesChanged, match="were changed while they were read"):
        read_text(model_dir, [first], read)


def test_only_files_of_the_version_are_copied_and_what_is_not_used_goes(model_dir: Path, tmp_path: Path) -> None:
    first = manifest_of(model_dir)
    keep_text(model_dir, [first])
    (old,) = copies(tmp_path)
    long_ago_s = old.stat().st_mtime - (UNUSED_DAYS + 1) * 24 * 3600
    os.utime(old, (long_ago_s, long_ago_s))
    (model_dir / "config.json").write_text("{}")
    keep_text(model_dir, [first, manifest_of(model_dir)])
    (new,) = copies(tmp_path)
    assert new != old


def test_a_copy_that_cannot_be_made_costs_a_warning(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / "slipstream").write_text("")
    with caplog.at_level(logging.WARNING):
        keep_text(model_dir, [manifest_of(model_dir)])
    assert "a router that is restarted depends on the files" in caplog.text
