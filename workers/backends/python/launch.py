"""The command that starts an instance of a Python model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.workers.backends.python.execution_environment import unpacked_environment

MAIN = Path(__file__).absolute().parent / "instance" / "main.py"
SETTINGS_VARIABLE = "SLIPSTREAM_INSTANCE"
ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"

# Activates an environment as its makers intend it, then becomes the instance.
ACTIVATE = 'environment="$1"; shift; source "$environment/bin/activate" && exec "$environment/bin/python" "$@"'


@dataclass(frozen=True, slots=True)
class InstanceLaunch:
    """An instance that is to be started: the fields of `start` and of the host's connection
    (docs/design/instance_protocol.md). `model_file` is the path of the model's code; `parameters` are the
    configuration's; `environment` are variables for the process. `backend` is for models that are not written in
    Python."""

    launch: str
    secret: str
    address: str
    memory_id: str
    name: str
    version: str
    folder: Path
    model_file: Path
    parameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    backend: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`cwd` None is that of the host."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path | None = None


def launch_command(
    start: InstanceLaunch, environments: Path, parent_pid: int | None = None, python: str = ""
) -> PythonCommand:
    """The command of an instance. `python` is the interpreter for models that bring none along, by default this one. An
    environment that a model brings along is unpacked below `environments`, which may take long: call it in a thread.
    Raises ExecutionEnvironmentError.

    `parent_pid` is the process that will start the instance, by default this one. It must do so in a thread that lives
    as long as the instance may: the kernel kills the instance when that thread ends.
    """
    program = (str(MAIN),)
    env = {**os.environ, **start.environment, SETTINGS_VARIABLE: settings_text(start, parent_pid or os.getpid())}
    wanted = start.parameters.get(ENVIRONMENT_PARAMETER)
    if not wanted:
        return PythonCommand((python or sys.executable, *program), env)
    folder = unpacked_environment(Path(wanted.replace(MODEL_DIRECTORY, str(start.folder))), environments)
    for name in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):
        env.pop(name, None)
    if (folder / "bin" / "activate").exists():
        return PythonCommand(("bash", "-c", ACTIVATE, "bash", str(folder), *program), env)
    env["PATH"] = f"{folder / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
    return PythonCommand((str(folder / "bin" / "python"), *program), env)


def settings_text(start: InstanceLaunch, parent_pid: int) -> str:
    """What `instance/settings.py` reads."""
    return json.dumps(
        {
            "address": start.address,
            "launch": start.launch,
            "secret": start.secret,
            "memory_id": start.memory_id,
            "name": start.name,
            "version": start.version,
            "model_file": str(start.model_file),
            "parent_pid": parent_pid,
            "backend": dict(start.backend),
        }
    )
