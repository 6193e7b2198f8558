"""What the instance host and its instances take of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psutil

from slipstream.router.instances.host_messages import ProcessUsage


def process_usage(pids: Mapping[str, int]) -> Iterator[ProcessUsage]:
    """By launch, as `pids` are. A process that has ended is left out, and so are those that an instance has started.
    May block for some milliseconds."""
    for launch, pid in pids.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
        except psutil.Error:
            continue
        yield ProcessUsage(launch, times.user + times.system, memory.rss)
