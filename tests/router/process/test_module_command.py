"""Which Slipstream the processes of a cluster are of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slipstream.router.process.module_command import import_root, module_command

MODULE = "slipstream.router.process.module_command"


def test_what_lies_in_the_working_directory_is_not_taken_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("slipstream/__init__.py", "pathlib.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(module_command(MODULE), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_slipstream_that_was_found_in_the_working_directory_is_found_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(import_root())
    assert "-P" not in module_command(MODULE)
    assert module_command(MODULE, "--option")[-3:] == ["-m", MODULE, "--option"]
