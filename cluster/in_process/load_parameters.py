"""The parameters of a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError

CONFIG = "config"
FILE = "file:"  # begins the names of parameters that are files


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """`config_json` "": that of the repository. `files` are contents by path, in place of those of the repository."""

    config_json: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


def load_parameters(given: Mapping[str, str | int | bool | bytes]) -> LoadParameters:
    """`config`, and `file:VERSION/PATH`. Raises InvalidArgumentError."""
    config, files = "", {}
    for name, value in given.items():
        if name == CONFIG and isinstance(value, str):
            config = value
        elif name.startswith(FILE) and isinstance(value, bytes | str):
            files[name.removeprefix(FILE)] = value.encode() if isinstance(value, str) else value
        else:
            raise InvalidArgumentError(f"unexpected load parameter '{name}' of type {type(value).__name__}")
    return LoadParameters(config, files)
