"""Settings of responses in the background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class BackgroundConfig:
    """A process that faces clients generates up to `max_running` of them at a time. In all processes together, up to
    `max_unfinished` are queued or in progress, and up to `max_tenant_unfinished` of one tenant; a few more if many come
    at once."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    max_running: int = 64
    max_unfinished: int = 1024
    max_tenant_unfinished: int = 256

    def __post_init__(self) -> None:
        for key in ("max_running", "max_unfinished", "max_tenant_unfinished"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
