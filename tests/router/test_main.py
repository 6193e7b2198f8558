"""The router as a plain program."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from slipstream.router.main import RouterProgram
from tests.support.router.fake_cluster import MODEL, MODEL_DIR


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose generation_config.json cannot be used."""
    copy = Path(shutil.copytree(MODEL_DIR, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    (copy / "generation_config.json").write_text('{"temperature": -1}')
    return copy


@contextlib.contextmanager
def program(folder: Path, **settings: Any) -> Iterator[tuple[bytes, subprocess.Popen[bytes]]]:
    """Yields what it prints first, and the process."""
    config = {"model": MODEL, "model_dir": str(folder), "token": "token", "router": {"http": {"port": 0}}, **settings}
    path = folder / "router.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "slipstream.router.main", "--config", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline(), process
        finally:
            process.kill()


def test_generation_config_none_leaves_the_file_aside(folder: Path) -> None:
    with program(folder, generation_config="none") as (line, _):
        assert orjson.loads(line).keys() == {"http", "workers"}


def test_a_file_that_cannot_be_used_is_named(folder: Path) -> None:
    with program(folder) as (line, process):
        assert process.stderr is not None
        assert (line, process.wait(30)) == (b"", 1)
        assert b"generation_config.json: temperature: must be a number from 0 to 2" in process.stderr.read()


def test_several_models_each_have_their_own_settings(tmp_path: Path) -> None:
    models = [
        {"name": "chat", "model_dir": str(MODEL_DIR), "aliases": ["c"]},
        {
            "name": "draft",
            "model_dir": str(MODEL_DIR),
            "dispatch": {"max_queued_requests": 7},
            "has_prefill_pool": True,
        },
    ]
    settings = TypeAdapter(RouterProgram).validate_python({"token": "t", "models": models})
    chat, draft = settings.sources()
    assert (chat.name, chat.aliases, chat.dispatch, chat.has_prefill_pool) == ("chat", ("c",), None, False)
    assert draft.dispatch is not None
    assert (draft.dispatch.max_queued_requests, draft.has_prefill_pool) == (7, True)
    (tmp_path / "router.yaml").touch()
    with program(tmp_path, model="", model_dir=None, models=models) as (line, _):
        assert orjson.loads(line).keys() == {"http", "workers"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "either model or models must be given, got '' and 0 models"),
        ({"model": "m", "model_dir": "d", "models": [{"name": "n", "model_dir": "d"}]}, "got 'm' and 1 models"),
        ({"model": "m"}, "model_dir must be given beside model 'm', got None"),
    ],
)
def test_models_that_are_given_twice_or_not_at_all_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        TypeAdapter(RouterProgram).validate_python({"token": "t", **settings})
