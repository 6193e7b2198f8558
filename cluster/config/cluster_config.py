"""The settings of one deployment: the contents of its YAML file, as checked and frozen dataclasses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from slipstream.cluster.config.host_name import is_host
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.router.config.router_config import ContentFormat, RouterConfig
from slipstream.router.model_files.sampling_defaults import GenerationConfigUse
from slipstream.router.protocol.messages import Role
from slipstream.workers.config.worker_config import EngineConfig

VERSION = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLUSTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")  # also a file name, and no option
MAX_REPLICAS = 1_000  # because one driver starts and watches them all
ROUTER_CPUS = 0.05  # only reserved; for what that means see PoolConfig


@dataclass(frozen=True, slots=True)
class ServedModelConfig:
    """`path` is a local directory in Hugging Face layout, or one with a numbered folder for each version, of which
    `version` selects one (null: the highest number). For a plain directory, `version` is a name for its content (null:
    a name is derived from the content). `name` is the name that clients ask for, by default that of the directory.
    `generation_config: none` leaves aside what generation_config.json recommends for sampling; its end tokens count in
    any case. `chat_template_content_format` says whether the chat template takes the content of messages as `string` or
    as a list of parts (`openai`); by default (`auto`) it is tried out."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    path: str
    name: str = ""
    version: str | int | None = None
    generation_config: GenerationConfigUse = "auto"
    chat_template_content_format: ContentFormat = "auto"

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path must not be empty")
        if not self.name.isprintable():  # it occurs in logs, headers and metrics
            raise ValueError(f"name must be printable, got {self.name!r}")
        if self.version is not None and not VERSION.fullmatch(str(self.version)):
            raise ValueError(f"version must be up to 64 letters, digits, '.', '_' or '-', got {self.version!r}")


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The workers of one role: `replicas` groups of `tp` ranks, with one process per rank. There may be none: without
    prefill groups, decode workers compute prompts; without decode workers, requests wait until there is one.

    `num_cpus` and `num_gpus` are what a rank reserves from Ray. Reserving CPUs does not pin anything; it only bounds
    how many ranks Ray puts on a host, and the small default lets a laptop hold a cluster. `num_gpus` None: a fair share
    of the GPUs that exist, at most one per rank. `resources` are further resources that a rank reserves, by the names
    given to `ray start --resources`. `labels` are what a host must have of `ray start --labels`, each value in the
    syntax of Ray's selectors (`a`, `!a`, `in(a, b)`). `engine` holds the settings that differ from the shared ones.
    `max_queued_tokens` is how many uncomputed prompt tokens a prefill group accepts.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    replicas: int = 1
    tp: int = 1
    num_cpus: float = 0.1
    num_gpus: float | None = None
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    max_queued_tokens: int = 8192
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.replicas <= MAX_REPLICAS:
            raise ValueError(f"replicas must be from 0 to {MAX_REPLICAS}, got {self.replicas}")
        for key in ("tp", "max_queued_tokens"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if not (self.num_cpus >= 0 and math.isfinite(self.num_cpus)):
            raise ValueError(f"num_cpus must be finite and not negative, got {self.num_cpus}")
        for kind, amount in self.resources.items():
            if kind in ("CPU", "GPU", "memory", "object_store_memory"):
                raise ValueError(f"resources must not name {kind}; CPUs and GPUs are num_cpus and num_gpus")
            if not (amount > 0 and math.isfinite(amount)):
                raise ValueError(f"resources.{kind} must be positive and finite, got {amount}")
        for label, wanted in self.labels.items():
            if not label or not wanted:
                raise ValueError(f"labels must have names and values, got {label!r}: {wanted!r}")
        gpus = self.num_gpus
        if gpus is not None:
            if not (gpus >= 0 and math.isfinite(gpus)):
                raise ValueError(f"num_gpus must be finite and not negative, got {gpus}")
            if gpus > 1 and gpus != int(gpus):
                raise ValueError(f"num_gpus must be a whole number above 1, got {gpus}")
            if self.tp > 1 and 0 < gpus < 1:
                raise ValueError(f"num_gpus must be 0, 1 or more with tp {self.tp}: ranks share no GPU; got {gpus}")


@dataclass(frozen=True, slots=True)
class RayConfig:
    """Which Ray to run on. `address` None: the cluster that RAY_ADDRESS names or, without that, a Ray of our own on
    this machine; `local`: always a Ray of our own. `num_cpus` and `num_gpus` are what that offers (None: what the
    machine has)."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    object_store_mib: int = 80  # Ray's minimum is 75; we do not use it

    def __post_init__(self) -> None:
        if self.address == "":
            raise ValueError("address must not be empty; leave it out for a local Ray")
        if self.num_cpus is not None and self.num_cpus < 1:
            raise ValueError(f"num_cpus must be at least 1, got {self.num_cpus}")
        if self.num_gpus is not None and self.num_gpus < 0:
            raise ValueError(f"num_gpus must not be negative, got {self.num_gpus}")
        if self.object_store_mib < 75:
            raise ValueError(f"object_store_mib must be at least 75, got {self.object_store_mib}")


@dataclass(frozen=True, slots=True)
class RestartConfig:
    """A process that dies is restarted after `backoff_s`. Each further death doubles that, up to `backoff_max_s`, but
    never beyond a quarter of the time for which it had served. After `stable_s` in good health, it starts over."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    backoff_s: float = 0.2
    backoff_max_s: float = 30.0
    stable_s: float = 60.0

    def __post_init__(self) -> None:
        for key in ("backoff_s", "backoff_max_s", "stable_s"):
            if not (getattr(self, key) >= 0 and math.isfinite(getattr(self, key))):
                raise ValueError(f"{key} must be finite and not negative, got {getattr(self, key)}")


@dataclass(frozen=True, slots=True)
class AdminApiConfig:
    """Where the driver serves the admin API. `port` 0: any free port, which `slipstream status` shows; null: no admin
    API. `token_file` holds the token that callers must present; by default that is a random one, in the state file,
    which only this user can read."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    host: str = "127.0.0.1"
    port: int | None = 0
    token_file: str | None = None

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError('host must not be empty; "::" or 0.0.0.0 means all interfaces')
        if self.port is not None and not 0 <= self.port < 65536:
            raise ValueError(f"port must be a port number (0: a free one) or null, got {self.port}")
        if self.token_file == "":
            raise ValueError("token_file must name a file or be null, got ''")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A whole deployment. `name` tells clusters on one machine apart. `engine` applies to both pools, each of which may
    override parts of it."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    model: ServedModelConfig
    name: str = "slipstream"
    engine: EngineConfig = field(default_factory=EngineConfig)
    prefill: PoolConfig = field(default_factory=PoolConfig)
    decode: PoolConfig = field(default_factory=PoolConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    kv_transfer: TransferConfig = field(default_factory=TransferConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    admin_api: AdminApiConfig = field(default_factory=AdminApiConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    startup_timeout_s: float = 300.0
    drain_timeout_s: float = 30.0
    drain_grace_s: float = 2.0  # after SIGTERM, before that: new requests are still served, readiness is 503

    def pools(self) -> Iterator[tuple[Role, PoolConfig]]:
        yield "prefill", self.prefill
        yield "decode", self.decode

    @property
    def num_cpus(self) -> float:
        """What all processes together reserve from Ray."""
        return ROUTER_CPUS + sum(pool.replicas * pool.tp * pool.num_cpus for _, pool in self.pools())

    @property
    def num_ranks(self) -> int:
        return sum(pool.replicas * pool.tp for _, pool in self.pools())

    def __post_init__(self) -> None:
        if not CLUSTER_NAME.fullmatch(self.name):
            raise ValueError(
                f"name must consist of 1 to 64 letters, digits, - and _, and not begin with -, got {self.name!r}"
            )
        if not (self.startup_timeout_s > 0 and math.isfinite(self.startup_timeout_s)):
            raise ValueError(f"startup_timeout_s must be positive and finite, got {self.startup_timeout_s}")
        if not (self.drain_timeout_s >= 0 and math.isfinite(self.drain_timeout_s)):
            raise ValueError(f"drain_timeout_s must be finite and not negative, got {self.drain_timeout_s}")
        if not (self.drain_grace_s >= 0 and math.isfinite(self.drain_grace_s)):
            raise ValueError(f"drain_grace_s must be finite and not negative, got {self.drain_grace_s}")
        for key, port in (
            ("router.http.port", self.router.http.port),
            ("router.worker_port", self.router.worker_port),
            ("router.admin.port", self.router.admin.port or 0),
        ):
            if not 0 <= port < 65536:
                raise ValueError(f"{key} must be a port number (0: a free one), got {port}")
        for key, host in (
            ("router.http.host", self.router.http.host),
            ("router.worker_host", self.router.worker_host),
            ("router.admin.host", self.router.admin.host),
            ("admin_api.host", self.admin_api.host),
            ("kv_transfer.host", self.kv_transfer.host),
        ):
            if not is_host(host):
                raise ValueError(f"{key} must be an IP address or the name of a host, got {host!r}")
        if self.router.worker_port and self.router.worker_port == self.router.http.port:
            raise ValueError(f"router.worker_port must differ from router.http.port, got {self.router.worker_port}")
        admin_port = self.router.admin.port
        if self.admin_api.port and self.admin_api.port in (self.router.http.port, self.router.worker_port, admin_port):
            raise ValueError(f"admin_api.port must differ from the ports of the router, got {self.admin_api.port}")
        if admin_port and admin_port in (self.router.http.port, self.router.worker_port):
            raise ValueError(f"router.admin.port must differ from the router's other ports, got {admin_port}")
        # Pages are sent as they are, so both sides must cut sequences at the same places and use the same type.
        for key in ("page_tokens", "dtype", "kv_cache_dtype"):
            ours, theirs = getattr(self.prefill.engine, key), getattr(self.decode.engine, key)
            if ours != theirs:
                raise ValueError(f"{key} must be the same for prefill and decode, got {ours} and {theirs}")
