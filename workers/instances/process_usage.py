"""What the instance host, its instances and their GPUs take of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psutil

from slipstream.router.instances.host_messages import ProcessUsage, UsageReport
from slipstream.router.machine.gpu_reader import GpuReader


class UsageReader:
    """Its methods may block for some milliseconds. GPUs are looked for at the first `read`."""

    def __init__(self) -> None:
        self._has_looked = False
        self._gpus: GpuReader | None = None

    def read(self, pids: Mapping[str, int]) -> UsageReport:
        """Of these processes by launch, and of all GPUs of this machine."""
        if not self._has_looked:
            self._gpus, self._has_looked = GpuReader.of_this_machine(), True
        gpus = self._gpus.read() if self._gpus is not None else ()
        return UsageReport({one.launch: one for one in process_usage(pids)}, gpus)

    def close(self) -> None:
        if self._gpus is not None:
            self._gpus.close()


def process_usage(pids: Mapping[str, int]) -> Iterator[ProcessUsage]:
    """By launch, as `pids` are. A process that has ended is left out, and so are those that an instance has started."""
    for launch, pid in pids.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
        except psutil.Error:
            continue
        yield ProcessUsage(launch, times.user + times.system, memory.rss)
