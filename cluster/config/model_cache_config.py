"""What a host keeps of models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class ModelCacheConfig:
    """What each host keeps of models. `path` is the folder of downloaded files (None: `slipstream/models` in the user's
    cache directory), which may grow to `max_gib` (None: without limit). `memory_gib` bounds the packed weights of
    recent models that stay in memory, so that a worker that changes to one of them need not read it again (None: as
    many as the kernel finds room for)."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    path: str | None = None
    max_gib: float | None = None
    memory_gib: float | None = None

    def __post_init__(self) -> None:
        if self.path == "":
            raise ValueError("path must name a folder or be null, got ''")
        for key in ("max_gib", "memory_gib"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{key} must be over 0 and finite, or null, got {value}")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_gib is None else int(self.memory_gib * (1 << 30))
