"""The priority of a worker's computing threads where cores are scarce.

A decode worker that shares its cores with a prefill worker would take half of them to advance the few sequences it has,
while the prompts that could join them wait: each of its steps reads all weights, for two sequences as for eight. With
less than half of the cores, prompts are done sooner, batches are larger, and throughput is higher. The kernel gives a
thread at niceness 5 a third of the time of one at 0, and all of it if no other thread wants it.

Where there is a core for each thread of all workers (`num_threads`), none of them needs a lower priority: with one, the
router and other programs would interrupt its steps, too.
"""

from __future__ import annotations

import os

from slipstream.kernels.cpu.native_library import native_library
from slipstream.router.process.container_limits import num_cores
from slipstream.router.protocol.messages import Role
from slipstream.workers.config.worker_config import EngineConfig, WorkerConfig

DECODE_NICENESS = 5


def niceness(config: WorkerConfig, role: Role, device_type: str) -> int:
    """The niceness that the settings ask for. By itself only decoding on a CPU stands back, where workers share cores:
    with a GPU the host's part of a step should never wait."""
    engine = config.engine
    if engine.niceness != "auto":
        return engine.niceness
    if role == "prefill" or device_type != "cpu":
        return 0
    shares_cores = engine.num_threads is None or engine.num_threads * config.ranks_on_host > num_cores()
    return DECODE_NICENESS if shares_cores else 0


def stand_back(niceness: int, engine: EngineConfig) -> None:
    """Gives this niceness to the calling thread, which computes steps, and to the threads of the native kernels.
    Threads that move pages or talk to the router keep theirs. To be called on a thread whose niceness is still 0."""
    if niceness > 0:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)  # on Linux this affects only the calling thread
    library = native_library() if engine.cpu_kernels == "auto" else None
    if library is not None:
        library.slipstream_set_niceness(niceness)
