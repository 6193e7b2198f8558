"""Settings of the router: its sockets, its limits, its dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from slipstream.router.access.config import AccessConfig

PolicyName = Literal["slo", "kv", "least_loaded", "round_robin", "isl_threshold"]

MAX_HISTORY_REQUESTS = 100_000
MAX_FRONTS = 64
MAX_TRACING_TIMEOUT_S = 60.0
MIN_LEASE_S = 0.1  # workers are pinged several times a lease


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files of the certificate, with its chain, and of its key; both or none. A renewed pair is taken up without a
    restart. At least TLS 1.2."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        for key, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
            if not getattr(self, key) and (getattr(self, key) == "" or getattr(self, other)):
                raise ValueError(f"{key} must be given beside {other}, got {getattr(self, key)!r}")

    @property
    def is_on(self) -> bool:
        return self.cert_file is not None


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
    max_connections: int = 10_000  # more get a 503 and are closed, except for /health
    tls: TlsConfig = field(default_factory=TlsConfig)

    def __post_init__(self) -> None:
        if not self.host:  # which a socket takes for all interfaces
            raise ValueError("host must not be empty; 0.0.0.0 means all interfaces")
        for key in ("max_body_mib", "max_header_kib", "max_connections"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        for key in ("header_timeout_s", "body_timeout_s", "keep_alive_s", "write_timeout_s"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """`port` None: /metrics, /cluster/status and what is told of requests are served at the port of the API, and need
    the key of an administrator where there are keys. A number (0: a free one): they are served there only, to whoever
    reaches it, without TLS."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    host: str = "127.0.0.1"
    port: int | None = None

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("host must not be empty; 0.0.0.0 means all interfaces")
        if self.port is not None and not 0 <= self.port < 65536:
            raise ValueError(f"port must be a port number (0: a free one), got {self.port}")


@dataclass(frozen=True, slots=True)
class SloConfig:
    """What requests that do not say otherwise are hoped to keep: time to the first token, and between tokens."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    ttft_ms: float = 500.0
    itl_ms: float = 50.0

    def __post_init__(self) -> None:
        for key in ("ttft_ms", "itl_ms"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be over 0, got {getattr(self, key)}")


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Parameters of single policies, and how many workers a decision looks at.

    kv             cost = `kv_prefill_scale` x pages to prefill and queued before + pages in use where it decodes
    isl_threshold  remote if over `threshold_tokens` are uncached and fewer than `threshold_queued_prompts` wait in the
                   prefill queue, both as NVIDIA Dynamo had it in 2025
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    max_candidates: int = 32  # workers of each side
    kv_prefill_scale: float = 1.0
    threshold_tokens: int = 512
    threshold_queued_prompts: int = 2

    def __post_init__(self) -> None:
        for key, lowest in (("max_candidates", 2), ("threshold_tokens", 0), ("threshold_queued_prompts", 1)):
            if getattr(self, key) < lowest:
                raise ValueError(f"{key} must be at least {lowest}, got {getattr(self, key)}")
        if not 0 <= self.kv_prefill_scale < float("inf"):
            raise ValueError(f"kv_prefill_scale must be a number of at least 0, got {self.kv_prefill_scale}")


@dataclass(frozen=True, slots=True)
class VersionsConfig:
    """`split` are the shares of versions of the model in new requests, of any sum; null: by the size of their pools. A
    request with tokens whose version has lost its last decode worker waits `wait_s` for one to come back. Then, or at
    once where none will, it goes on with another version (`continue_across`) or ends with an error."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    split: dict[str, float] | None = None
    continue_across: bool = True
    wait_s: float = 5.0

    def __post_init__(self) -> None:
        if self.split is not None:
            check_split(self.split)
        if not 0 <= self.wait_s < float("inf"):
            raise ValueError(f"wait_s must be finite and not negative, got {self.wait_s}")


def check_split(split: Mapping[str, float]) -> None:
    """Raises ValueError that says what is wrong."""
    for version, weight in split.items():
        if not version:
            raise ValueError("split has a version without a name")
        if not 0 <= weight < float("inf"):
            raise ValueError(f"split must give {version!r} a number of at least 0, got {weight}")
    if not any(split.values()):
        raise ValueError(f"split must give a version a share over 0, got {dict(split)}")


@dataclass(frozen=True, slots=True)
class MigrationConfig:
    """How running sequences move between decode workers. `max_at_once` of them leave or come to a worker at a time.
    What has at least `precopy_pages` pages to send is copied while it decodes; fewer are sent while it stands still."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    max_at_once: int = 2
    precopy_pages: int = 4
    timeout_s: float = 60.0  # of all the copying; after that it goes on where it is
    freeze_timeout_s: float = 5.0  # of the last pages, while it stands still

    def __post_init__(self) -> None:
        for key in ("max_at_once", "precopy_pages"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        for key in ("timeout_s", "freeze_timeout_s"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """`policy` says how a request's workers are chosen. `local_prefill_max_tokens` draws a line for every policy:
    prompts of at most so many uncached tokens are prefilled on the decode worker, longer ones on a prefill worker as
    long as there is one. None: the policy decides."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    policy: PolicyName = "slo"
    slo: SloConfig = field(default_factory=SloConfig)
    local_prefill_max_tokens: int | None = None
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    migration: MigrationConfig = field(default_factory=MigrationConfig)
    max_queued_requests: int = 4096
    max_attempts: int = 5
    queue_timeout_s: float = 120.0
    request_timeout_s: float = 600.0
    reserve_timeout_s: float = 10.0
    worker_lease_s: float = 10.0  # a worker that is silent for so long is lost
    ageing_s: float = 5.0  # a class that has waited so long for each class before it gets every second turn
    strict_slo: bool = False  # refuse at once whose `slo.ttft_ms` cannot be met, not only those that ask for it
    max_queued_per_tenant: int | None = None  # None: half of max_queued_requests for each tenant that has a name
    versions: VersionsConfig = field(default_factory=VersionsConfig)

    def __post_init__(self) -> None:
        line, per_tenant = self.local_prefill_max_tokens, self.max_queued_per_tenant
        if line is not None and line < 0:
            raise ValueError(f"local_prefill_max_tokens must be 0 or more, got {line}")
        if per_tenant is not None and per_tenant < 1:
            raise ValueError(f"max_queued_per_tenant must be at least 1 or null, got {per_tenant}")
        for key in ("max_queued_requests", "max_attempts"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        for key in ("queue_timeout_s", "request_timeout_s", "reserve_timeout_s", "worker_lease_s"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")
        if self.worker_lease_s < MIN_LEASE_S:
            raise ValueError(f"worker_lease_s must be at least {MIN_LEASE_S}, got {self.worker_lease_s}")
        if not 0 <= self.ageing_s < float("inf"):
            raise ValueError(f"ageing_s must be finite and not negative, got {self.ageing_s}")


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Spans over OTLP/HTTP, to `otlp_endpoint`: a base URL (http://collector:4318, the path /v1/traces is added) or the
    whole one. None: none are made. `sample_ratio` of the requests whose caller has not decided are traced.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    otlp_endpoint: str | None = None
    sample_ratio: float = 1.0
    queue_requests: int = 4096  # that wait for the collector; more are not traced
    timeout_s: float = 5.0  # of a POST with its repetitions, and of the last ones at the end

    def __post_init__(self) -> None:
        if self.otlp_endpoint is not None:
            try:
                url = urlsplit(self.otlp_endpoint)
                is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
            except ValueError:  # brackets that do not match, a port that is none
                is_url = False
            if not is_url:
                raise ValueError(f"otlp_endpoint must be a http or https URL, got {self.otlp_endpoint!r}")
        if not 0 <= self.sample_ratio <= 1:
            raise ValueError(f"sample_ratio must be 0 to 1, got {self.sample_ratio}")
        if not 1 <= self.queue_requests <= MAX_HISTORY_REQUESTS:
            raise ValueError(f"queue_requests must be 1 to {MAX_HISTORY_REQUESTS}, got {self.queue_requests}")
        if not 0 < self.timeout_s <= MAX_TRACING_TIMEOUT_S:
            raise ValueError(f"timeout_s must be over 0 and at most {MAX_TRACING_TIMEOUT_S}, got {self.timeout_s}")

    @property
    def traces_url(self) -> str | None:
        """Where spans are posted."""
        if self.otlp_endpoint is None or urlsplit(self.otlp_endpoint).path.strip("/"):
            return self.otlp_endpoint
        return self.otlp_endpoint.rstrip("/") + "/v1/traces"


@dataclass(frozen=True, slots=True)
class RouterConfig:
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    http: HttpConfig = field(default_factory=HttpConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    worker_host: str = "127.0.0.1"
    worker_port: int = 0  # 0: a free one
    tracing: TracingConfig = field(default_factory=TracingConfig)
    history_requests: int = 1024  # running and finished ones that can be explained; one takes 5 to 50 KiB
    fronts: int = 1  # processes for HTTP and tokenising, which share `http.max_connections`; 1: the dispatcher's own

    def __post_init__(self) -> None:
        if not self.worker_host:
            raise ValueError("worker_host must not be empty; 0.0.0.0 means all interfaces")
        if not 1 <= self.fronts <= MAX_FRONTS:
            raise ValueError(f"fronts must be 1 to {MAX_FRONTS}, got {self.fronts}")
        if not 1 <= self.history_requests <= MAX_HISTORY_REQUESTS:
            raise ValueError(f"history_requests must be 1 to {MAX_HISTORY_REQUESTS}, got {self.history_requests}")
