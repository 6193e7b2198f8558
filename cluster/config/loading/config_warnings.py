"""Settings that are allowed but probably a mistake. `check` and the start warn about them, and do not refuse them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.model_settings import models_by_key
from slipstream.cluster.config.settings_file import Key
from slipstream.cluster.repository.memory_need import MemoryPart, memory_parts
from slipstream.cluster.repository.model_dir import model_warnings
from slipstream.kernels.cpu.native_library import why_not_native
from slipstream.kv_transfer.ucx.ucx_availability import MISSING, has_ucx
from slipstream.router.process.container_limits import memory_limit, num_cores
from slipstream.router.protocol.messages import Role

MIB = 2**20
NOTHING_SCALED: Mapping[str, Mapping[Role, int]] = {}


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use. `memory_limit_file` is where a control group says so; "": it is all memory there is.
    A quota of the container counts as so many cores."""

    memory_bytes: int
    num_cores: int
    memory_limit_file: str = ""

    @classmethod
    def this(cls) -> Machine:
        memory_bytes, limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit()
        if limit is not None and limit.num_bytes < memory_bytes:
            return cls(limit.num_bytes, num_cores(), limit.file)
        return cls(memory_bytes, num_cores())

    @property
    def memory_mib(self) -> int:
        return self.memory_bytes // MIB

    @property
    def memory(self) -> str:
        """What there is, as the part of a sentence."""
        if self.memory_limit_file:
            return f"the memory limit of this container is {self.memory_mib} MiB ({self.memory_limit_file})"
        return f"this machine has {self.memory_mib} MiB of memory"


def warnings_about(config: ClusterConfig, machine: Machine) -> Iterator[str]:
    """The warnings, one sentence each, beginning with the key. `machine` is this one; workers may be on others."""
    for key, alone in models_by_key(config):
        ours, theirs = alone.prefill.engine.quantization, alone.decode.engine.quantization
        if ours != theirs:
            yield (
                f"{_dotted(key)}quantization is {ours} for prefill and {theirs} for decode: a prompt that the decode "
                "worker computes itself gives other numbers than one that is computed remotely"
            )
        if config.models and not alone.decode.replicas and not config.planner.enabled:
            wait = f"requests of {alone.model.name} wait until `slipstream scale` gives it a worker"
            yield f"{_dotted(key)}decode.replicas is 0, and no planner is enabled: {wait}"
    yield from filter(None, [too_little_memory(config, machine)])
    yield from itertools.islice(_too_many_threads(config, machine), 1)
    if config.ray.object_store_mib > machine.memory_mib:
        asked = f"ray.object_store_mib is {config.ray.object_store_mib}"
        yield f"{asked}, and {machine.memory}: a Ray of its own would not start"
    for key, alone in models_by_key(config):
        for warning in model_warnings(alone):
            yield f"{_dotted(key)}{warning.removeprefix('model.')}" if key else warning


def _dotted(key: Key) -> str:
    """The beginning of the keys below this one."""
    return "".join(f"{part}." for part in key)


def _too_many_threads(config: ClusterConfig, machine: Machine) -> Iterator[str]:
    for key, alone in models_by_key(config):
        for role, pool in alone.pools():
            if (pool.engine.num_threads or 0) > machine.num_cores:
                asked = f"{_dotted(key)}{role}.engine.num_threads is {pool.engine.num_threads}"
                yield f"{asked}, and this process may use {machine.num_cores} cores: more threads are slower"


def too_little_memory(
    config: ClusterConfig, machine: Machine, replicas: Mapping[str, Mapping[Role, int]] = NOTHING_SCALED
) -> str | None:
    """Why weights, processes and pools exceed this machine's memory or its container's; None: they do not. Judges only
    what is known to be there, not what is on a GPU or on other machines. `replicas` are those of each model, by name,
    where they are not as configured. Reads files of the models."""
    parts = [part for part in all_memory_parts(config, replicas) if part.mib]
    too_large = next((part for part in parts if part.each_mib > machine.memory_mib), None)
    if too_large is not None:
        return f"{too_large.said}, and {machine.memory}: a worker refuses to start where so much is not free"
    total_mib = sum(part.mib for part in parts)
    if total_mib <= machine.memory_mib:
        return None
    asked = ", ".join(map(str, parts))
    return f"{asked}: together {total_mib} MiB at least, and {machine.memory}: they do not fit on this host alone"


def all_memory_parts(
    config: ClusterConfig, replicas: Mapping[str, Mapping[Role, int]] = NOTHING_SCALED
) -> Iterator[MemoryPart]:
    """What the settings of all models ask for on a host, which divide the budget."""
    has_budget = False
    for key, configured in models_by_key(config):
        alone = _scaled(configured, replicas.get(configured.model.name, {}))
        for part in memory_parts(alone):
            said = part.said
            if said.startswith("budget."):
                if has_budget:
                    continue
                has_budget = True
            elif key:
                weights = "the weights in "
                is_weights = said.startswith(weights)
                said = f"{weights}{_dotted(key)}path" if is_weights else f"{_dotted(key)}{said}"
            yield replace(part, said=said)


def _scaled(alone: ClusterConfig, replicas: Mapping[Role, int]) -> ClusterConfig:
    prefill, decode = (replace(pool, replicas=replicas.get(role, pool.replicas)) for role, pool in alone.pools())
    return replace(alone, prefill=prefill, decode=decode)


def missing_parts(config: ClusterConfig) -> Iterator[str]:
    """Sentences about optional parts of Slipstream that this machine lacks, so that slower or narrower ones serve."""
    if not has_ucx() and config.kv_transfer.transport == "auto" and config.has_model:
        yield f"{MISSING}: KV pages go through shared memory, which serves one host"
    pools = [pool for alone in config.each() for _, pool in alone.pools()]
    on_cpu = [pool for pool in pools if pool.engine.device != "cuda" and pool.engine.cpu_kernels == "auto"]
    why = why_not_native()
    if on_cpu and why is not None:
        yield f"no native CPU kernels ({why}): on a CPU, PyTorch computes, which is much slower"
