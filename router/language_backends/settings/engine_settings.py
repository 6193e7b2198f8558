"""Settings of the engines of `vllm` and `tensorrtllm` as settings of a deployment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PAGE_TOKENS = 16  # engine.page_tokens, unless the deployment says otherwise
DTYPES = {"auto": "auto", "half": "float16", "float": "float32"}
NO_SETTING = object()  # the value asks for nothing that there is a setting for


def integer(value: Any) -> int:
    return int(value)


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in ("true", "false", "1", "0"):
        raise ValueError(f"must be true or false, got {value!r}")
    return text in ("true", "1")


def pages(value: Any) -> int:
    return math.ceil(int(value) / PAGE_TOKENS)


def dtype(value: Any) -> str:
    return DTYPES.get(str(value), str(value))


def fp8_or_nothing(value: Any) -> Any:
    """Of quantisations, those of the weights' files need no setting."""
    return "fp8" if str(value).startswith("fp8") else NO_SETTING


def scheduler_policy(value: Any) -> Any:
    return str(value).lower() if str(value).lower() in ("max_utilization", "guaranteed_no_evict") else NO_SETTING


def mebibytes(value: Any) -> int:
    return max(1, int(value) >> 20)


@dataclass(frozen=True, slots=True)
class Mapped:
    """`key` of a deployment, with dots, and how the value is read."""

    key: str
    read: Callable[[Any], Any]


VLLM: Mapping[str, Mapped] = {
    "max_model_len": Mapped("engine.max_model_len", integer),
    "dtype": Mapped("engine.dtype", dtype),
    "max_num_seqs": Mapped("engine.max_num_seqs", integer),
    "max_num_batched_tokens": Mapped("engine.max_step_tokens", integer),
    "enable_prefix_caching": Mapped("engine.prefix_caching", boolean),
    "block_size": Mapped("engine.page_tokens", integer),
    "num_gpu_blocks_override": Mapped("engine.num_pages", integer),
    "kv_cache_memory_bytes": Mapped("engine.kv_cache_mib", mebibytes),
    "kv_cache_dtype": Mapped("engine.kv_cache_dtype", fp8_or_nothing),
    "quantization": Mapped("engine.quantization", fp8_or_nothing),
    "enable_expert_parallel": Mapped("engine.expert_parallel", boolean),
    "tensor_parallel_size": Mapped("decode.tp", integer),
    "data_parallel_size": Mapped("decode.replicas", integer),
    "trust_remote_code": Mapped("trust_remote_code", boolean),
}
TENSORRT_LLM: Mapping[str, Mapped] = {
    "max_tokens_in_paged_kv_cache": Mapped("engine.num_pages", pages),
    "batch_scheduler_policy": Mapped("engine.scheduler_policy", scheduler_policy),
    "scheduler_policy": Mapped("engine.scheduler_policy", scheduler_policy),
    "enable_kv_cache_reuse": Mapped("engine.prefix_caching", boolean),
    "max_num_sequences": Mapped("engine.max_num_seqs", integer),
    "max_num_tokens": Mapped("engine.max_step_tokens", integer),
    "max_seq_len": Mapped("engine.max_model_len", integer),
}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`settings` are nested as an entry of `models` in a deployment; `ignored` are those that have no effect."""

    settings: Mapping[str, Any]
    ignored: tuple[str, ...]

    @classmethod
    def of(cls, table: Mapping[str, Mapped], given: Mapping[str, Any]) -> EngineSettings:
        """Raises ValueError, with the name."""
        settings: dict[str, Any] = {}
        ignored = []
        for name, value in given.items():
            mapped = table.get(name)
            if value is None or value == "":
                continue
            try:
                read = NO_SETTING if mapped is None else mapped.read(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name} cannot be read: {error}") from None
            if mapped is None or read is NO_SETTING:
                ignored.append(name)
                continue
            *folders, key = mapped.key.split(".")
            place = settings
            for folder in folders:
                place = place.setdefault(folder, {})
            place[key] = read
        return cls(settings, tuple(sorted(ignored)))
