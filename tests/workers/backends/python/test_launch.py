"""The command of an instance, and the environments that models bring along."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from slipstream.workers.backends.python.execution_environment import ExecutionEnvironmentError
from slipstream.workers.backends.python.launch import InstanceLaunch, launch_command


def start_of(folder: Path, **parameters: str) -> InstanceLaunch:
    return InstanceLaunch(
        launch="launch",
        secret="secret",
        address="unix:/nowhere",
        memory_id="memory",
        name="m_0",
        version="1",
        folder=folder,
        model_file=folder / "1" / "model.py",
        parameters=parameters,
        environment={"OF_THE_MODEL": "1"},
    )


def packed_environment(folder: Path, *, activate: str | None) -> Path:
    """An archive whose python says what it was started with."""
    content = folder / "content" / "bin"
    content.mkdir(parents=True)
    python = content / "python"
    python.write_text('#!/bin/sh\necho "ran $0 $OF_THE_MODEL $ACTIVATED"\n')
    python.chmod(0o755)
    (content / "python3").symlink_to("/absolute/link")
    if activate is not None:
        (content / "activate").write_text(activate)
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(content, "bin")
    return archive


def test_the_default_interpreter_is_this_one_or_the_one_that_is_named(tmp_path: Path) -> None:
    command = launch_command(start_of(tmp_path), tmp_path)
    assert command.argv[0] == sys.executable
    assert command.argv[1].endswith("instance/main.py")
    assert command.env["OF_THE_MODEL"] == "1"
    assert not any("secret" in argument for argument in command.argv)
    assert launch_command(start_of(tmp_path), tmp_path, python="/other/python").argv[0] == "/other/python"


@pytest.mark.parametrize("activate", ["export ACTIVATED=yes\n", None])
def test_an_environment_is_unpacked_once_and_activated(tmp_path: Path, activate: str | None) -> None:
    packed_environment(tmp_path, activate=activate)
    start = start_of(tmp_path, EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/environment.tar.gz")
    environments = tmp_path / "environments"
    command = launch_command(start, environments)
    (folder,) = (path for path in environments.iterdir() if path.is_dir())
    unpacked = folder.stat().st_ino
    assert launch_command(start, environments) == command
    assert folder.stat().st_ino == unpacked
    output = subprocess.run(command.argv, env=command.env, capture_output=True, text=True, check=True).stdout
    assert output.split() == ["ran", str(folder / "bin" / "python"), "1", *(["yes"] if activate else [])]


def test_a_changed_archive_is_unpacked_anew(tmp_path: Path) -> None:
    archive = packed_environment(tmp_path, activate=None)
    start = start_of(tmp_path, EXECUTION_ENV_PATH=str(archive))
    before = launch_command(start, tmp_path / "environments").argv[0]
    os.utime(archive, (1, 1))
    assert launch_command(start, tmp_path / "environments").argv[0] != before


def test_a_folder_is_an_environment_of_its_own(tmp_path: Path) -> None:
    packed_environment(tmp_path, activate=None)
    start = start_of(tmp_path, EXECUTION_ENV_PATH=str(tmp_path / "content"))
    assert launch_command(start, tmp_path / "environments").argv[0] == str(tmp_path / "content" / "bin" / "python")


def test_an_environment_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.tar.gz").write_text("no archive")
    (tmp_path / "empty").mkdir()
    for name in ("missing.tar.gz", "text.tar.gz", "empty"):
        with pytest.raises(ExecutionEnvironmentError, match=name):
            launch_command(start_of(tmp_path, EXECUTION_ENV_PATH=str(tmp_path / name)), tmp_path / "environments")
