"""Settings that are allowed but probably a mistake. `check` and the start warn about them, and do not refuse them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.repository.memory_need import memory_parts
from slipstream.cluster.repository.model_dir import model_warnings
from slipstream.kernels.cpu.native_library import why_not_native
from slipstream.kv_transfer.ucx.ucx_availability import MISSING, has_ucx
from slipstream.router.process.container_limits import memory_limit, num_cores

MIB = 2**20


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
    ours, theirs = config.prefill.engine.quantization, config.decode.engine.quantization
    if ours != theirs:
        yield (
            f"quantization is {ours} for prefill and {theirs} for decode: a prompt that the decode worker computes "
            f"itself gives other numbers than one that is computed remotely"
        )
    yield from _pools_too_large(config, machine)
    for role, pool in config.pools():
        if (pool.engine.num_threads or 0) > machine.num_cores:
            cores = f"this process may use {machine.num_cores} cores"
            yield f"{role}.engine.num_threads is {pool.engine.num_threads}, and {cores}: more threads are slower"
            break
    if config.ray.object_store_mib > machine.memory_mib:
        asked = f"ray.object_store_mib is {config.ray.object_store_mib}"
        yield f"{asked}, and {machine.memory}: a Ray of its own would not start"
    yield from model_warnings(config)


def _pools_too_large(config: ClusterConfig, machine: Machine) -> Iterator[str]:
    """Warns if weights, processes and pools exceed this machine's memory or its container's. Judges only what is known
    to be there, not what is on a GPU or on other machines."""
    parts = [part for part in memory_parts(config) if part.mib]
    too_large = next((part for part in parts if part.each_mib > machine.memory_mib), None)
    if too_large is not None:
        yield f"{too_large.said}, and {machine.memory}: a worker refuses to start where so much is not free"
        return
    total_mib = sum(part.mib for part in parts)
    if total_mib > machine.memory_mib:
        asked = ", ".join(map(str, parts))
        yield f"{asked}: together {total_mib} MiB at least, and {machine.memory}: they do not fit on this host alone"


def missing_parts(config: ClusterConfig) -> Iterator[str]:
    """Sentences about optional parts of Slipstream that this machine lacks, so that slower or narrower ones serve."""
    if not has_ucx() and config.kv_transfer.transport == "auto":
        yield f"{MISSING}: KV pages go through shared memory, which serves one host"
    on_cpu = [pool for _, pool in config.pools() if pool.engine.device != "cuda" and pool.engine.cpu_kernels == "auto"]
    why = why_not_native()
    if on_cpu and why is not None:
        yield f"no native CPU kernels ({why}): on a CPU, PyTorch computes, which is much slower"
