"""Settings of the router: its sockets, its limits, its dispatcher."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

MAX_HISTORY_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class HttpConfig:
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_mib: int = 16
    max_header_kib: int = 64
    header_timeout_s: float = 10.0  # from the first byte of a request to its last header
    body_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    write_timeout_s: float = 60.0  # a client that reads nothing for so long is gone


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """Prompts of at most `local_prefill_max_tokens` uncached tokens are prefilled on the decode worker."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    local_prefill_max_tokens: int = 128
    max_queued_requests: int = 4096
    max_attempts: int = 5
    queue_timeout_s: float = 120.0
    request_timeout_s: float = 600.0
    reserve_timeout_s: float = 10.0
    worker_lease_s: float = 10.0  # a worker that is silent for so long is lost
    ageing_s: float = 5.0  # a class that has waited so long for each class before it gets every second turn
    default_ttft_s: float = 2.0  # the deadline, in the queue, of requests that say none
    strict_slo: bool = False  # refuse at once whose `slo.ttft_ms` cannot be met, not only those that ask for it
    max_queued_per_tenant: int | None = None  # None: half of max_queued_requests for each tenant that has a name


@dataclass(frozen=True, slots=True)
class RouterConfig:
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    http: HttpConfig = field(default_factory=HttpConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    worker_host: str = "127.0.0.1"
    worker_port: int = 0  # 0: a free one
    history_requests: int = 1024  # running and finished ones that can be explained; one takes 5 to 50 KiB

    def __post_init__(self) -> None:
        if not 1 <= self.history_requests <= MAX_HISTORY_REQUESTS:
            raise ValueError(f"history_requests must be 1 to {MAX_HISTORY_REQUESTS}, got {self.history_requests}")
