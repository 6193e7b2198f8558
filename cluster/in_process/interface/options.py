"""The options of a server within a program, with Triton's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slipstream.cluster.in_process.interface.kinds import (
    InstanceGroupKind,
    LogFormat,
    ModelControlMode,
    RateLimitMode,
)


@dataclass(slots=True)
class RateLimiterResource:
    """`count` copies of a resource of the rate limiter on one device."""

    name: str
    count: int
    device: int


@dataclass(slots=True)
class ModelLoadDeviceLimit:
    """Has no effect: a model that does not fit fails to load."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass(slots=True)
class Options:
    """`model_repository` is a folder or an address (s3://, gs://, az://, hf://), or a list of them. `Server.start`
    checks the options.

    Nothing listens for clients. Of the options that concern memory pools, plug-ins and threads of Triton's own none has
    an effect; docs/design/in_process.md lists them."""

    model_repository: str | list[str] | None = field(default_factory=list)
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)  # with ModelControlMode.EXPLICIT
    strict_model_config: bool = False  # configurations are not completed

    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)

    pinned_memory_pool_size: int = 1 << 28
    cuda_memory_pool_sizes: dict[int, int] = field(default_factory=dict)

    cache_config: dict[str, dict[str, Any]] = field(default_factory=dict)  # {"local": {"size": BYTES}}
    cache_directory: str = "/opt/tritonserver/caches"

    min_supported_compute_capability: float = 6.0

    exit_on_error: bool = True  # `start` raises if a model cannot be loaded
    strict_readiness: bool = True
    exit_timeout: int = 30  # seconds in which requests may end after `stop`
    buffer_manager_thread_count: int = 0
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True

    log_file: str | None = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: int = 0

    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: int = 2000  # milliseconds between two readings of the machine

    backend_directory: str = "/opt/tritonserver/backends"
    repo_agent_directory: str = "/opt/tritonserver/repoagents"
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: dict[str, dict[str, str]] = field(default_factory=dict)  # backend -> setting -> value
    host_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics_configuration: dict[str, dict[str, str]] = field(default_factory=dict)  # {"": {setting: value}}
