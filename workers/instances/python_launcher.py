"""Commands of instances of Python models."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import slipstream.workers
from slipstream.router.instances.messages import StartInstance
from slipstream.workers.instances.launch_command import InstanceContact, LaunchCommand

PROGRAM = Path(next(iter(slipstream.workers.__path__))) / "backends" / "python" / "instance" / "main.py"


class PythonLauncher:
    """`python` is the interpreter of models that name none, `cache` the folder for packed environments."""

    def __init__(self, python: str, cache: str) -> None:
        self._python = python or sys.executable
        self._cache = cache

    def __call__(self, start: StartInstance, contact: InstanceContact) -> LaunchCommand:
        settings = {
            "address": contact.address,
            "launch": contact.launch,
            "secret": contact.secret,
            "memory_id": contact.memory_id,
            "name": start.name,
            "version": start.version,
            "model_file": str(Path(start.version_folder) / start.model_file),
            "parent_pid": contact.parent_pid,
        }
        environment = {**os.environ, **start.environment, "SLIPSTREAM_INSTANCE": json.dumps(settings)}
        return LaunchCommand([self._python, str(PROGRAM)], environment)
