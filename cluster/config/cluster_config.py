"""The settings of one deployment: the contents of its YAML file, as checked and frozen dataclasses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.host_name import is_host
from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.config.model_entry import NO_MODEL, ModelEntry, ServedModelConfig
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.cluster.config.watch_config import WatchConfig
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.router.config.log_config import LogConfig
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.protocol.messages import Role
from slipstream.router.tls.admin_tls import AdminTlsConfig
from slipstream.workers.config.worker_config import EngineConfig

CLUSTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")  # also a file name, and no option
ROUTER_CPUS = 0.05  # only reserved; for what that means see PoolConfig
INSTANCE_HOST_CPUS = 0.05


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
    never beyond a tenth of the time for which it had served. After `stable_s` in good health, it starts over. With
    `standby_router`, a process that has imported the router waits to be the next one."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    backoff_s: float = 0.2
    backoff_max_s: float = 30.0
    stable_s: float = 5.0
    standby_router: bool = True

    def __post_init__(self) -> None:
        for key in ("backoff_s", "backoff_max_s", "stable_s"):
            if not (getattr(self, key) >= 0 and math.isfinite(getattr(self, key))):
                raise ValueError(f"{key} must be finite and not negative, got {getattr(self, key)}")


@dataclass(frozen=True, slots=True)
class AdminApiConfig:
    """Where the driver serves the admin API. `port` 0: any free port, which `slipstream status` shows; null: no admin
    API. `token_file` holds the token that callers must present; by default that is a random one, in the state file,
    which only this user can read. `tokens_file` has further ones, with names and roles (`token_file.py`). Without `tls`
    it is served over plain HTTP."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    host: str = "127.0.0.1"
    port: int | None = 0
    token_file: str | None = None
    tokens_file: str | None = None
    tls: AdminTlsConfig = field(default_factory=AdminTlsConfig)

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError('host must not be empty; "::" or 0.0.0.0 means all interfaces')
        if self.port is not None and not 0 <= self.port < 65536:
            raise ValueError(f"port must be a port number (0: a free one) or null, got {self.port}")
        for key in ("token_file", "tokens_file"):
            if getattr(self, key) == "":
                raise ValueError(f"{key} must name a file or be null, got ''")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A whole deployment. `name` tells clusters on one machine apart.

    There is a single `model` with the pools `prefill` and `decode`, or there are several `models`, each with pools of
    its own; then `model` and the pools are those of the first one. `engine` applies to all pools, each of which may
    override parts of it. `repository` has tensor models; with it there may be no other model, and then `model` is
    `NO_MODEL`.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    model: ServedModelConfig = NO_MODEL
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
    models: tuple[ModelEntry, ...] = ()
    repository: RepositoryConfig = field(default_factory=RepositoryConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    model_cache: ModelCacheConfig = field(default_factory=ModelCacheConfig)
    log: LogConfig = field(default_factory=LogConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    startup_timeout_s: float = 300.0
    drain_timeout_s: float = 30.0
    drain_grace_s: float = 2.0  # after SIGTERM, before that: new requests are still served, readiness is 503

    def pools(self) -> Iterator[tuple[Role, PoolConfig]]:
        yield "prefill", self.prefill
        yield "decode", self.decode

    @property
    def has_model(self) -> bool:
        """Whether it serves a model beside those of the repository."""
        return self.model != NO_MODEL

    def entries(self) -> tuple[ModelEntry, ...]:
        """All models but those of the repository."""
        if self.models or not self.has_model:
            return self.models
        served = {one.name: getattr(self.model, one.name) for one in fields(ServedModelConfig)}
        return (ModelEntry(**served, engine=self.engine, prefill=self.prefill, decode=self.decode),)

    def of_model(self, name: str) -> ClusterConfig:
        """The same deployment with this model only. Raises KeyError if there is none of this name."""
        entry = next((one for one in self.models if one.name == name), None)
        if entry is not None:
            return self.alone(entry)
        if self.models or name != self.model.name:
            raise KeyError(name)
        return self

    def alone(self, entry: ModelEntry) -> ClusterConfig:
        """The same deployment with this one of its models only."""
        if not self.models:
            return self
        router = self.router
        if entry.slo is not None:
            router = replace(router, dispatch=replace(router.dispatch, slo=entry.slo))
        alone = replace(self, model=entry.served, router=router, models=())
        return replace(alone, engine=entry.engine, prefill=entry.prefill, decode=entry.decode)

    def each(self) -> Iterator[ClusterConfig]:
        """The deployment of each model alone."""
        return map(self.alone, self.entries())

    def with_models(self, entries: Sequence[ModelEntry]) -> ClusterConfig:
        """The same deployment with these models, at least one unless there is a repository. Raises ValueError if two of
        them have a name in common."""
        if not entries:
            return replace(self, models=(), model=NO_MODEL, prefill=PoolConfig(), decode=PoolConfig())
        first = entries[0]
        return replace(self, models=tuple(entries), model=first.served, prefill=first.prefill, decode=first.decode)

    @property
    def num_cpus(self) -> float:
        """What all processes together reserve from Ray."""
        hosts = INSTANCE_HOST_CPUS * self.repository.hosts if self.repository.is_on else 0.0
        return ROUTER_CPUS + hosts + sum(pool.replicas * pool.tp * pool.num_cpus for pool in self._all_pools())

    @property
    def num_ranks(self) -> int:
        return sum(pool.replicas * pool.tp for pool in self._all_pools())

    def _all_pools(self) -> Iterator[PoolConfig]:
        for entry in self.entries():
            yield from (entry.prefill, entry.decode)

    def __post_init__(self) -> None:
        if not self.has_model and not self.repository.is_on:
            raise ValueError("model is missing; a deployment needs model, models or repository.paths")
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
        self._check_addresses()
        if self.repository.is_on and self.router.frontends > 1:
            raise ValueError(f"router.frontends must be 1 where there is a repository, got {self.router.frontends}")
        if self.planner.enabled and self.planner.class_name is not None and not self.has_model:
            raise ValueError(
                "planner.class_name must be null where there is only a repository, because planners of one's own "
                f"decide about workers, got {self.planner.class_name!r}"
            )
        for position, entry in enumerate(self.models):
            _check_same_pages(f"models.{position}.", entry.prefill, entry.decode)
        _check_same_pages("", self.prefill, self.decode)
        self._check_hosts_of_groups()
        _check_names(self.models)
        _check_least(self.models, self.budget)

    def _check_hosts_of_groups(self) -> None:
        """The budget of a host counts a group where its first rank is. Raises ValueError."""
        if self.budget.memory_gib is None:
            return
        most = max((pool.hosts_per_group for pool in self._all_pools()), default=1)
        if most > 1:
            raise ValueError(f"hosts_per_group must be 1 where there is a budget.memory_gib, got {most}")

    def _check_addresses(self) -> None:
        """Raises ValueError."""
        router, repository = self.router, self.repository
        for key, port in (
            ("router.http.port", router.http.port),
            ("router.worker_port", router.worker_port),
            ("router.admin.port", router.admin.port or 0),
        ):
            if not 0 <= port < 65536:
                raise ValueError(f"{key} must be a port number (0: a free one), got {port}")
        for key, host in (
            ("router.http.host", router.http.host),
            ("router.worker_host", router.worker_host),
            ("router.admin.host", router.admin.host),
            ("admin_api.host", self.admin_api.host),
            ("kv_transfer.host", self.kv_transfer.host),
            ("repository.grpc.host", repository.grpc.host),
            ("repository.metrics.host", repository.metrics.host),
        ):
            if host is not None and not is_host(host):
                raise ValueError(f"{key} must be an IP address or the name of a host, got {host!r}")
        if router.worker_port and router.worker_port == router.http.port:
            raise ValueError(f"router.worker_port must differ from router.http.port, got {router.worker_port}")
        admin_port = router.admin.port
        if self.admin_api.port and self.admin_api.port in (router.http.port, router.worker_port, admin_port):
            raise ValueError(f"admin_api.port must differ from the ports of the router, got {self.admin_api.port}")
        if admin_port and admin_port in (router.http.port, router.worker_port):
            raise ValueError(f"router.admin.port must differ from the router's other ports, got {admin_port}")
        if repository.is_on:
            _check_repository_ports(repository, {router.http.port, router.worker_port, admin_port, self.admin_api.port})


def _check_repository_ports(repository: RepositoryConfig, taken: set[int | None]) -> None:
    """Raises ValueError if a port of the repository is one of those `taken`."""
    for key, port in (
        ("repository.grpc.port", repository.grpc.port),
        ("repository.metrics.port", repository.metrics.port),
        ("repository.instance_port", repository.instance_port),
    ):
        if port and port in taken:
            raise ValueError(f"{key} must differ from the cluster's other ports, got {port}")
        taken.add(port)


def _check_same_pages(place: str, prefill: PoolConfig, decode: PoolConfig) -> None:
    """Pages are sent as they are, so both sides must cut sequences at the same places and use the same type. Raises
    ValueError."""
    for key in ("page_tokens", "dtype", "kv_cache_dtype"):
        ours, theirs = getattr(prefill.engine, key), getattr(decode.engine, key)
        if ours != theirs:
            raise ValueError(f"{place}{key} must be the same for prefill and decode, got {ours} and {theirs}")


def _check_names(models: tuple[ModelEntry, ...]) -> None:
    """Each name and alias belongs to one model. Raises ValueError. A model without a name gets that of its directory
    later, and is checked then."""
    taken: dict[str, int] = {}
    for position, entry in enumerate(models):
        for key, name in (("name", entry.name), *(("aliases", alias) for alias in entry.aliases)):
            if name and name in taken:
                where = f"models.{position}.{key}"
                raise ValueError(f"{where} must differ from the names of models.{taken[name]}, got {name!r}")
            if name:
                taken[name] = position


def _check_least(models: tuple[ModelEntry, ...], budget: BudgetConfig) -> None:
    """The workers that the models are to have in any case are within the budget. Raises ValueError."""
    total = 0
    for position, entry in enumerate(models):
        total += entry.min_workers
        if budget.workers is not None and total > budget.workers:
            place, most = f"models.{position}.min_workers", f"budget.workers, which is {budget.workers}"
            raise ValueError(f"{place} must leave all models within {most}, got {entry.min_workers}")
