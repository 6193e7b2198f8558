"""Settings of the router: its sockets, its limits, its dispatcher."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.background_config import BackgroundConfig
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.config.ui_config import UiConfig
from slipstream.router.protocol.generation import Levels
from slipstream.router.tls.link_tls import LinkTlsConfig

ContentFormat = Literal["auto", "string", "openai"]  # of messages, for the chat template; vLLM's names
PolicyName = Literal["slo", "kv", "least_loaded", "round_robin", "isl_threshold"]

FORMER_NAMES = {"fronts": "frontends"}  # of settings in `RouterConfig`
MAX_HISTORY_REQUESTS = 100_000
MAX_FRONTENDS = 64
MAX_TRACING_TIMEOUT_S = 60.0
ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@,*\s]+")  # RFC 6454, 6.2
PATH_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
# First segments of the paths of the API. A prefix that begins with one of them would make paths ambiguous.
OWN_SEGMENTS = frozenset(
    (
        "v1",
        "v2",
        "health",
        "ping",
        "version",
        "tokenize",
        "detokenize",
        "metrics",
        "cluster",
        "docs",
        "openapi.json",
        "ui",
    )
)
MAX_UNIX_PATH_BYTES = 107  # `sun_path` of unix(7)
MIN_LEASE_S = 0.1  # workers are pinged several times per lease


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files of the certificate (with its chain) and of its key: both or neither. A renewed pair is picked up
    without a restart. Clients need TLS 1.2 or later."""

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
    write_timeout_s: float = 60.0  # a client that reads nothing for this long is disconnected
    max_connections: int = 10_000  # further ones get a 503 (except for /health) and are closed
    tls: TlsConfig = field(default_factory=TlsConfig)
    cors_origins: tuple[str, ...] = ()  # whose pages may read answers in a browser; "*": all
    path_prefix: str = ""  # every path is served below it as well
    unix_socket: str | None = None  # also listen there, without TLS
    sse_ping_s: float | None = None  # after so long without a token, a stream gets a comment

    def __post_init__(self) -> None:
        if not self.host:  # a socket takes an empty host for "all interfaces"
            raise ValueError('host must not be empty; "::" or 0.0.0.0 means all interfaces')
        for origin in self.cors_origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                example = 'must be "*" or origins such as https://app.example.com, without a path'
                raise ValueError(f"cors_origins {example}, got {origin!r}")
        if self.path_prefix and not PATH_PREFIX.fullmatch(self.path_prefix):
            raise ValueError(
                f"path_prefix must begin with a slash and not end with one, as in /llm, got {self.path_prefix!r}"
            )
        if self.path_prefix and self.path_prefix.split("/")[1] in OWN_SEGMENTS:
            raise ValueError(f"path_prefix must not begin as a path that is served, got {self.path_prefix!r}")
        if self.unix_socket is not None and not 0 < len(self.unix_socket.encode()) <= MAX_UNIX_PATH_BYTES:
            limit = f"a path of at most {MAX_UNIX_PATH_BYTES} bytes"
            raise ValueError(f"unix_socket must be null or {limit}, got {self.unix_socket!r}")
        for key in ("max_body_mib", "max_header_kib", "max_connections"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if self.sse_ping_s is not None and not 0 < self.sse_ping_s < float("inf"):
            raise ValueError(f"sse_ping_s must be null, or over 0 and finite, got {self.sse_ping_s}")
        for key in ("header_timeout_s", "body_timeout_s", "keep_alive_s", "write_timeout_s"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """The administrators' port. With `port` None, /metrics, /cluster/... and the records of requests are served at the
    API's port and, if there are keys, need an administrator's key. With a number (0: any free port) they are served at
    that port only, without TLS, to all clients that reach it."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    host: str = "127.0.0.1"
    port: int | None = None

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError('host must not be empty; "::" or 0.0.0.0 means all interfaces')
        if self.port is not None and not 0 <= self.port < 65536:
            raise ValueError(f"port must be a port number (0: a free one), got {self.port}")


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """How strict the API is. `unknown_fields` are ignored and named in the header `x-slipstream-ignored`, or refused
    with a 400. A request for more output than the model's context has room for is `overlong`: it gets what there is
    room for, or a 400. Of long prompts, `prompt_memory_mib` are remembered for the next turn of their conversations, in
    each process that faces clients."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    overlong: Literal["clamp", "refuse"] = "clamp"
    prompt_memory_mib: int = 256

    def __post_init__(self) -> None:
        if self.prompt_memory_mib < 0:
            raise ValueError(f"prompt_memory_mib must be at least 0, got {self.prompt_memory_mib}")

    @property
    def prompt_memory_bytes(self) -> int:
        return self.prompt_memory_mib << 20


@dataclass(frozen=True, slots=True)
class SloConfig:
    """The service level of requests that do not bring their own: time to first token, and mean time between tokens."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    ttft_ms: float = 500.0
    itl_ms: float = 50.0

    def __post_init__(self) -> None:
        for key in ("ttft_ms", "itl_ms"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")

    @property
    def levels(self) -> Levels:
        return Levels(self.ttft_ms / 1e3, self.itl_ms / 1e3)


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Parameters of individual policies, and how many workers a decision considers.

    kv             cost = `kv_prefill_scale` x pages to prefill and queued before + pages in use where it decodes
    isl_threshold  remote if more than `threshold_tokens` are uncached and fewer than `threshold_queued_prompts` wait in
                   the prefill queue (the rule that NVIDIA Dynamo had in 2025)
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    max_candidates: int = 32  # workers considered of each role
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
    """Versions of the model that are served at the same time. `split` gives each version's share of new requests, in
    any unit; null: in proportion to the size of their pools. If a version loses its last decode worker, its requests
    that already have tokens wait `wait_s` for one to come back. After that, or at once if none is expected, they
    continue on another version (`continue_across`) or end with an error."""

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
    """Raises ValueError with a sentence that names the mistake."""
    for version, weight in split.items():
        if not version:
            raise ValueError("split has a version without a name")
        if not 0 <= weight < float("inf"):
            raise ValueError(f"split must give {version!r} a number of at least 0, got {weight}")
    if not any(split.values()):
        raise ValueError(f"split must give a version a share over 0, got {dict(split)}")


@dataclass(frozen=True, slots=True)
class MigrationConfig:
    """How running sequences move between decode workers. At most `max_at_once` of them are leaving, or arriving at, one
    worker at a time. While at least `precopy_pages` pages remain to be sent, they are copied while the sequence
    continues to decode; fewer are sent while it is frozen. With `rebalance` they do not only move away from workers
    that drain, but also to workers where they would be faster."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    rebalance: bool = True
    max_at_once: int = 2
    precopy_pages: int = 4
    timeout_s: float = 60.0  # for all the copying; after that the sequence stays where it is
    freeze_timeout_s: float = 5.0  # for the last pages, while the sequence is frozen

    def __post_init__(self) -> None:
        for key in ("max_at_once", "precopy_pages"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        for key in ("timeout_s", "freeze_timeout_s"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """How long workers keep the KV of conversations that wait for a tool: for the time within which they come back,
    learned by tool and tenant, at most `max_keep_s`; where a client asks for a time, at most `max_pin_s`."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    enabled: bool = True
    max_keep_s: float = 600.0
    max_pin_s: float = 3600.0

    def __post_init__(self) -> None:
        for key in ("max_keep_s", "max_pin_s"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be finite and not negative, got {getattr(self, key)}")


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """How requests are queued and placed. `policy` says how a request's workers are chosen. `local_prefill_max_tokens`
    overrules any policy: prompts with at most that many uncached tokens are prefilled on the decode worker, longer ones
    on a prefill worker if there is one. None: the policy decides."""

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
    worker_lease_s: float = 10.0  # a worker that is silent for this long counts as lost
    ageing_s: float = 5.0  # a class gets every second turn once it has waited this long per class ahead of it
    strict_slo: bool = False  # refuse every request whose `slo.ttft_ms` cannot be met, not only those that ask for that
    max_queued_per_tenant: int | None = None  # None: half of max_queued_requests for each named tenant
    versions: VersionsConfig = field(default_factory=VersionsConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)

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
    """Spans are sent over OTLP/HTTP to `otlp_endpoint`: a base URL (http://collector:4318, to which the path /v1/traces
    is added) or a complete one. None: no tracing. Of the requests whose caller has not decided, the share
    `sample_ratio` is traced.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    otlp_endpoint: str | None = None
    sample_ratio: float = 1.0
    queue_requests: int = 4096  # traced requests that may wait for the collector; the spans of further ones are dropped
    timeout_s: float = 5.0  # for one POST including its retries, and for sending the rest when the router stops

    def __post_init__(self) -> None:
        if self.otlp_endpoint is not None:
            try:
                url = urlsplit(self.otlp_endpoint)
                is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
            except ValueError:  # unbalanced brackets, or a port that is not a number
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
        """The URL that spans are posted to."""
        if self.otlp_endpoint is None or urlsplit(self.otlp_endpoint).path.strip("/"):
            return self.otlp_endpoint
        return self.otlp_endpoint.rstrip("/") + "/v1/traces"


@dataclass(frozen=True, slots=True)
class RouterConfig:
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    http: HttpConfig = field(default_factory=HttpConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    worker_host: str = "127.0.0.1"
    worker_port: int = 0  # 0: any free port
    worker_tls: LinkTlsConfig = field(default_factory=LinkTlsConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    # How many requests, running and finished, can be explained (each takes 5 to 50 KiB), and how many refused (1 KiB).
    history_requests: int = 1024
    # Processes for HTTP and tokenising, which share `http.max_connections`. 1: inside the dispatcher's process.
    frontends: int = 1
    store: StoreConfig = field(default_factory=StoreConfig)
    batches: BatchesConfig = field(default_factory=BatchesConfig)
    background: BackgroundConfig = field(default_factory=BackgroundConfig)
    ui: UiConfig = field(default_factory=UiConfig)
    extensions: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # settings by the name of a class

    def __post_init__(self) -> None:
        if not self.worker_host:
            raise ValueError('worker_host must not be empty; "::" or 0.0.0.0 means all interfaces')
        if not 1 <= self.frontends <= MAX_FRONTENDS:
            raise ValueError(f"frontends must be 1 to {MAX_FRONTENDS}, got {self.frontends}")
        if not 1 <= self.history_requests <= MAX_HISTORY_REQUESTS:
            raise ValueError(f"history_requests must be 1 to {MAX_HISTORY_REQUESTS}, got {self.history_requests}")
