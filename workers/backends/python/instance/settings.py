"""What the instance host tells an instance when it starts it, in one variable of the environment."""

from __future__ import annotations

import json
import os
from typing import Any

VARIABLE = "SLIPSTREAM_INSTANCE"
FIELDS = ("address", "launch", "secret", "memory_id", "name", "version", "model_file", "parent_pid", "backend")


class Settings:
    """`address` is that of the router's instance port (`unix:PATH` or `HOST:PORT`). `model_file` is the path of the
    model's code, whose folder is that of the version `version`. `parent_pid` is the process that started this one.
    `backend` says how a model that is not written in Python is loaded; for Python models it is empty."""

    __slots__ = FIELDS

    def __init__(
        self,
        address: str,
        launch: str,
        secret: str,
        memory_id: str,
        name: str,
        version: str,
        model_file: str,
        parent_pid: int,
        backend: dict[str, Any],
    ) -> None:
        self.address = address
        self.launch = launch
        self.secret = secret
        self.memory_id = memory_id
        self.name = name
        self.version = version
        self.model_file = model_file
        self.parent_pid = parent_pid
        self.backend = backend


def take_settings() -> Settings:
    """Reads the variable and removes it, so that neither the model nor its children see it."""
    fields = json.loads(os.environ.pop(VARIABLE))
    return Settings(**{name: fields[name] for name in FIELDS})
