"""Settings of the protocols that tensor models are served with: KServe v2 over HTTP and gRPC, and Triton's metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

RestrictedName = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]
MIB = 1 << 20
MAX_PING_S = 2**31 / 1e3


@dataclass(frozen=True, slots=True)
class RestrictedApis:
    """Groups of calls that are refused (403, or UNAVAILABLE over gRPC) unless the request has the header `header` with
    the value `value`."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    apis: tuple[RestrictedName, ...]
    header: str
    value: str

    def __post_init__(self) -> None:
        for key in ("apis", "header", "value"):
            if not getattr(self, key):
                raise ValueError(f"{key} must not be empty")


@dataclass(frozen=True, slots=True)
class KServeHttpConfig:
    """KServe v2 at the port of the router's HTTP API. A body of JSON, and each tensor in it, has at most
    `max_input_bytes`. Headers in whose name `forward_headers`, a regular expression, is found become parameters of the
    request."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    enabled: bool = True
    max_input_bytes: int = 64 * MIB
    forward_headers: str = ""
    restricted: tuple[RestrictedApis, ...] = ()

    def __post_init__(self) -> None:
        if self.max_input_bytes < 1:
            raise ValueError(f"max_input_bytes must be at least 1, got {self.max_input_bytes}")
        _check_pattern(self.forward_headers)


@dataclass(frozen=True, slots=True)
class GrpcTlsConfig:
    """Files in PEM format. None: gRPC without TLS. With `client_ca_file`, clients must present a certificate."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError(f"cert_file and key_file belong together, got {self.cert_file!r} and {self.key_file!r}")
        if self.client_ca_file is not None and self.cert_file is None:
            raise ValueError(f"client_ca_file needs a cert_file, got {self.client_ca_file!r} without one")

    @property
    def is_on(self) -> bool:
        return self.cert_file is not None


@dataclass(frozen=True, slots=True)
class KServeGrpcConfig:
    """KServe v2 over gRPC. `port` 0: any free port; null: no gRPC. `host` null: that of the router's HTTP API. Metadata
    in whose key `forward_headers` is found become parameters of the request."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    port: int | None = 8001
    host: str | None = None
    tls: GrpcTlsConfig = field(default_factory=GrpcTlsConfig)
    forward_headers: str = ""
    restricted: tuple[RestrictedApis, ...] = ()
    compression: Literal["none", "low", "medium", "high"] = "none"  # of responses
    keepalive_s: float = 7200.0  # a client that is silent for this long is asked whether it is there
    keepalive_timeout_s: float = 20.0  # and has this long to answer
    max_connection_age_s: float | None = None

    def __post_init__(self) -> None:
        _check_port(self.port)
        _check_pattern(self.forward_headers)
        for key in ("keepalive_s", "keepalive_timeout_s", "max_connection_age_s"):
            value = getattr(self, key)
            if value is not None and not 0 < value < MAX_PING_S:
                raise ValueError(f"{key} must be over 0 and less than {MAX_PING_S:.0f}, got {value}")


@dataclass(frozen=True, slots=True)
class TensorMetricsConfig:
    """Triton's metrics (`nv_...`) at a port of their own; they are at the router's /metrics as well. `port` 0: any free
    port; null: none. `host` null: that of the router's HTTP API."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    port: int | None = 8002
    host: str | None = None
    interval_s: float = 2.0  # between two readings of the machine's processors and GPUs
    gpu: bool = True
    cpu: bool = True
    counter_latencies: bool = True
    summary_latencies: bool = False
    summary_quantiles: tuple[tuple[float, float], ...] = (  # quantile, allowed error
        (0.5, 0.05),
        (0.9, 0.01),
        (0.95, 0.001),
        (0.99, 0.001),
        (0.999, 0.001),
    )
    histogram_latencies: bool = False

    def __post_init__(self) -> None:
        _check_port(self.port)
        if not 0 < self.interval_s < float("inf"):
            raise ValueError(f"interval_s must be over 0 and finite, got {self.interval_s}")
        for quantile, error in self.summary_quantiles:
            if not (0 < quantile < 1 and 0 < error < 1):
                raise ValueError(f"summary_quantiles must be pairs of numbers in (0, 1), got {(quantile, error)}")


def _check_port(port: int | None) -> None:
    if port is not None and not 0 <= port < 65536:
        raise ValueError(f"port must be a port number (0: a free one) or null, got {port}")


def _check_pattern(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"forward_headers must be a regular expression, got {text!r}: {error}") from None
