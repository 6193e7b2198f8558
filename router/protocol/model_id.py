"""The identity of what is served: a model's name and its version."""

from __future__ import annotations

from typing import NamedTuple

SEPARATOR = "@"


class ModelId(NamedTuple):
    """`name` is what clients ask for; `version` "" stands for any version. Written as `name@version`."""

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}{SEPARATOR}{self.version}" if self.version else self.name
