"""Settings that are allowed but probably a mistake. `check` and the start warn about them, and do not refuse them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.cluster.config import ClusterConfig
from slipstream.cluster.model_dir import model_warnings

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Machine:
    memory_bytes: int
    num_cores: int

    @classmethod
    def this(cls) -> Machine:
        return cls(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), os.cpu_count() or 1)

    @property
    def memory_mib(self) -> int:
        return self.memory_bytes // MIB


def doubts_about(config: ClusterConfig, machine: Machine) -> Iterator[str]:
    """The warnings, one sentence each, beginning with the key. `machine` is this one; workers may be on others."""
    ours, theirs = config.prefill.engine.quantization, config.decode.engine.quantization
    if ours != theirs:
        yield (
            f"quantization is {ours} for prefill and {theirs} for decode: a prompt that the decode worker computes "
            f"itself gives other numbers than one that is computed remotely"
        )
    yield from _pools_too_large(config, machine)
    for role, pool in config.pools():
        if (pool.engine.num_threads or 0) > machine.num_cores:
            cores = f"this machine has {machine.num_cores} cores"
            yield f"{role}.engine.num_threads is {pool.engine.num_threads}, and {cores}: more threads are slower"
            break
    if config.ray.object_store_mib > machine.memory_mib:
        memory = f"this machine has {machine.memory_mib} MiB of memory"
        yield f"ray.object_store_mib is {config.ray.object_store_mib}, and {memory}: a Ray of its own would not start"
    yield from model_warnings(config)


def _pools_too_large(config: ClusterConfig, machine: Machine) -> Iterator[str]:
    """Warns if the KV pools exceed this machine's memory. It judges only pools that are known to be there, not those on
    a GPU or on other machines."""
    total_mib = 0
    for role, pool in config.pools():
        size = pool.engine.kv_cache_mib
        if pool.engine.device == "cuda" or pool.engine.num_pages is not None or size == "auto":
            continue
        if size > machine.memory_mib:
            yield (
                f"{role}.engine.kv_cache_mib is {size}, and this machine has {machine.memory_mib} MiB of memory: a "
                f"worker refuses to start where so much is not free"
            )
            return
        total_mib += size * pool.replicas * pool.tp
    if total_mib > machine.memory_mib:
        yield (
            f"kv_cache_mib of all {config.num_ranks} ranks together is {total_mib}, and this machine has "
            f"{machine.memory_mib} MiB of memory: they do not fit on it alone"
        )
