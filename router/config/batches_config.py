"""Settings of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

MAX_RUNNING_LINES = 4096


@dataclass(frozen=True, slots=True)
class BatchesConfig:
    """A process that faces clients serves up to `max_running` batches at a time, and up to `max_running_lines` of each;
    fewer as long as the cluster refuses some. A tenant has at most `max_tenant_unfinished` batches that are not over. A
    batch has at most `max_lines` requests (as at OpenAI)."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    max_running: int = 4
    max_running_lines: int = 64
    max_tenant_unfinished: int = 1000
    max_lines: int = 50_000
    max_line_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        for key in ("max_running", "max_running_lines", "max_tenant_unfinished", "max_lines", "max_line_bytes"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if self.max_running_lines > MAX_RUNNING_LINES:
            raise ValueError(f"max_running_lines must be at most {MAX_RUNNING_LINES}, got {self.max_running_lines}")
