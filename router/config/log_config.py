"""How the processes of a cluster log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True)
class LogConfig:
    """`format` null: as the environment variable SLIPSTREAM_LOG_FORMAT says, else text."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    format: Literal["text", "json"] | None = None
