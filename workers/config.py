"""Settings of one worker group's engine. Plain dataclasses: no dependency beyond the standard library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`num_pages` wins over `kv_cache_mib`. `max_step_tokens` is the chunk budget of a step: prompts longer than
    what decoding leaves of it are computed in several steps. `page_tokens` = 16 is vLLM's default block size."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    page_tokens: int = 16
    kv_cache_mib: int = 256
    num_pages: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_step_tokens: int = 512
    prefix_caching: bool = True
    num_threads: int | None = None

    def __post_init__(self) -> None:
        for key in ("page_tokens", "kv_cache_mib", "max_num_seqs", "max_step_tokens"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        for key in ("num_pages", "max_model_len", "num_threads"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} must be at least 1 or null, got {value}")
