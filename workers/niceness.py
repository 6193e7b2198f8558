"""The priority of a worker's computing threads where cores are scarce.

A decode worker that shares its cores with a prefill worker would take half of them to advance the few sequences it has,
while the prompts that could join them wait: each of its steps reads all weights, for two sequences as for eight. With
less than half of the cores, prompts are done sooner, batches are larger, and throughput is higher. The kernel gives a
thread at niceness 5 a third of the time of one at 0, and all of it if nobody else wants it.

A worker that is given fewer threads than there are cores leaves cores to the others, and need not stand back: it would
do so for the router and for whatever else runs there, too, in the middle of its steps.
"""

from __future__ import annotations

import os

from slipstream.kernels.cpu.library import native_library
from slipstream.router.messages import Role
from slipstream.workers.config import EngineConfig

DECODE_NICENESS = 5


def niceness(engine: EngineConfig, role: Role, device_type: str) -> int:
    """The niceness that the settings ask for. With a GPU it is 0, because the host's part of a step should never
    wait."""
    if engine.niceness != "auto":
        return engine.niceness
    leaves_cores = engine.num_threads is not None and engine.num_threads < len(os.sched_getaffinity(0))
    return DECODE_NICENESS if role == "decode" and device_type == "cpu" and not leaves_cores else 0


def stand_back(niceness: int, engine: EngineConfig) -> None:
    """Gives this niceness to the calling thread, which computes steps, and to the threads of the native kernels.
    Threads that move pages or talk to the router keep theirs. To be called on a thread whose niceness is still 0."""
    if niceness > 0:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)  # on Linux this affects only the calling thread
    library = native_library() if engine.cpu_kernels == "auto" else None
    if library is not None:
        library.slipstream_set_niceness(niceness)
