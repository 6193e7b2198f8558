"""The command that starts an instance of a model that a backend computes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from slipstream.workers.backends.python.launch import SETTINGS_VARIABLE, InstanceLaunch, settings_text

MAIN = "slipstream.workers.backends.hosting.main"


@dataclass(frozen=True, slots=True)
class BackendCommand:
    argv: tuple[str, ...]
    env: dict[str, str]


def backend_command(start: InstanceLaunch) -> BackendCommand:
    """It runs with this interpreter. The kernel kills it when the thread ends that starts it."""
    env = {**os.environ, **start.environment, SETTINGS_VARIABLE: settings_text(start, os.getpid())}
    return BackendCommand((sys.executable, "-P", "-m", MAIN), env)
