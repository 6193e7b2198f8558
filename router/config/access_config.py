"""Settings of access control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """`keys_file` None: everything is open. `usage_file` None: usage is counted in memory only, from the start of the
    process. Paths are relative to the deployment's file."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    keys_file: str | None = None
    usage_file: str | None = None

    def __post_init__(self) -> None:
        for key in ("keys_file", "usage_file"):
            if getattr(self, key) == "":
                raise ValueError(f"{key} must not be empty; leave it out for none")
