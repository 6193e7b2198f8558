"""What is allowed in a configuration and hardly meant: said by `check` and at the start, and no reason to refuse it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from slipstream.cluster.config import ClusterConfig

MIB = 2**20


def doubts_about(config: ClusterConfig, memory_bytes: int) -> Iterator[str]:
    """One sentence each, beginning with the key. `memory_bytes` is what this machine has."""
    ours, theirs = config.prefill.engine.quantization, config.decode.engine.quantization
    if ours != theirs:
        yield (
            f"quantization is {ours} for prefill and {theirs} for decode: a prompt that the decode worker computes "
            f"itself gives other numbers than one that is computed remotely"
        )
    yield from _pools_too_large(config, memory_bytes)


def _pools_too_large(config: ClusterConfig, memory_bytes: int) -> Iterator[str]:
    """Of pages that are known to be in this machine's memory: on a GPU, or on other machines, nobody knows here."""
    total_mib = 0
    for role, pool in config.pools():
        size = pool.engine.kv_cache_mib
        if pool.engine.device == "cuda" or pool.engine.num_pages is not None or size == "auto":
            continue
        if size * MIB > memory_bytes:
            yield (
                f"{role}.engine.kv_cache_mib is {size}, and this machine has {memory_bytes // MIB} MiB of memory: a "
                f"worker refuses to start where so much is not free"
            )
            return
        total_mib += size * pool.replicas * pool.tp
    if total_mib * MIB > memory_bytes:
        yield (
            f"kv_cache_mib of all {config.num_ranks} ranks together is {total_mib}, and this machine has "
            f"{memory_bytes // MIB} MiB of memory: they do not fit on it alone"
        )


def machine_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
