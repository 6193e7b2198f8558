"""The workers of a language model on this machine."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.model_file import entries_of
from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.config.model_entry import NO_MODEL, ModelEntry
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.repository.model_location import ModelFiles
from slipstream.cluster.sizing.chosen_entry import Room, chosen_entry
from slipstream.cluster.sizing.machine_facts import read_machine
from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.process.addresses import Endpoint
from slipstream.router.protocol.messages import Role
from slipstream.router.status.wanted_models import WantedModel
from slipstream.workers.config.worker_config import RoleSettings, WorkerConfig

ENTRY_FILE = "entry.yaml"
DRAIN_S = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """`source` is what the router serves; `workers` are one configuration a group."""

    source: ModelSource
    workers: tuple[WorkerConfig, ...]


@dataclass(frozen=True, slots=True)
class WorkerContact:
    """How workers reach the router, and its secret."""

    router: Endpoint
    token: str


def worker_plan(
    model: WantedModel, repository: RepositoryConfig, folder: Path, contact: WorkerContact, files: ModelFiles
) -> WorkerPlan:
    """What `slipstream serve MODEL` would choose, with the settings of the model laid over it. `folder` gets the chosen
    entry. Blocks. Raises FleetError."""
    try:
        cluster = ClusterConfig(NO_MODEL, repository=repository)
        path = folder / ENTRY_FILE
        path.write_text(chosen_entry(model, read_machine(), Room(), files, ModelCacheConfig()), encoding="utf-8")
        (entry,) = entries_of(path, cluster, log.warning, files, model.name)
    except ConfigError as error:
        raise FleetError("invalid", "config", "; ".join(error.problems)) from None
    except OSError as error:
        raise FleetError("unavailable", "config", str(error)) from None
    return WorkerPlan(source_of_entry(entry), tuple(workers_of(entry, cluster, contact)))


def source_of_entry(entry: ModelEntry) -> ModelSource:
    return ModelSource(
        entry.name,
        Path(entry.path),
        entry.generation_config,
        entry.chat_template_content_format,
        aliases=entry.aliases,
        has_prefill_pool=entry.prefill.replicas > 0,
        weight=entry.weight,
        parsers=entry.parsers,
    )


def workers_of(entry: ModelEntry, cluster: ClusterConfig, contact: WorkerContact) -> list[WorkerConfig]:
    roles: tuple[tuple[Role, PoolConfig, PoolConfig], ...] = (
        ("prefill", entry.prefill, entry.decode),
        ("decode", entry.decode, entry.prefill),
    )
    num_ranks = sum(pool.replicas * pool.tp for _, pool, _ in roles)
    return [
        WorkerConfig(
            name=f"{entry.name}/{role}-{number}",
            role=role,
            model=entry.name,
            model_dir=entry.path,
            router_host=contact.router.host,
            router_port=contact.router.port,
            token=contact.token,
            tp=pool.tp,
            max_queued_tokens=pool.max_queued_tokens,
            ranks_on_host=num_ranks,
            drain_s=DRAIN_S,
            engine=pool.engine,
            other_role=RoleSettings(other.max_queued_tokens, other.engine),
            transfer=cluster.kv_transfer,
            trust_remote_code=entry.trust_remote_code,
        )
        for role, pool, other in roles
        for number in range(pool.replicas)
    ]
