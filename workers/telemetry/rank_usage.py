"""What the process of a rank takes of its host: processors, memory and its GPU."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import psutil
import torch

from slipstream.router.machine.gpu_reader import GpuReader, GpuReading
from slipstream.router.protocol.messages import GpuUsage, RankUsage

READ_EVERY_S = 5.0

log = logging.getLogger(__name__)


class RankUsageSampler:
    """Between `__enter__` and `__exit__` a thread reads the usage of this process and of the GPU of `device` each
    `interval_s`, and calls `tell` with it. It is a thread because a GPU may take some milliseconds to answer."""

    def __init__(
        self, rank: int, device: torch.device, tell: Callable[[RankUsage], None], interval_s: float = READ_EVERY_S
    ) -> None:
        self._rank = rank
        self._device = device
        self._tell = tell
        self._interval_s = interval_s
        self._process = psutil.Process()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        uuid = gpu_uuid(self._device)
        gpu = GpuReader.of_gpu(uuid) if uuid is not None else None
        try:
            while not self._ended.is_set():
                self._tell(self._read(gpu))
                self._ended.wait(self._interval_s)
        except Exception:  # a fault of a driver's library must not end the worker
            log.exception("the usage of rank %d is not read any more", self._rank)
        finally:
            if gpu is not None:
                gpu.close()

    def _read(self, gpu: GpuReader | None) -> RankUsage:
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
        gpus = tuple(map(gpu_usage, gpu.read())) if gpu is not None else ()
        return RankUsage(self._rank, times.user + times.system, memory.rss, gpus)


@dataclass(slots=True)
class GroupUsage:
    """The latest usage of each rank of a group. Threads may call `take` while another one reads."""

    _latest: dict[int, RankUsage] = field(default_factory=dict)

    def take(self, usage: RankUsage) -> None:
        self._latest[usage.rank] = usage

    @property
    def ranks(self) -> tuple[RankUsage, ...]:
        latest = self._latest.copy()
        return tuple(latest[rank] for rank in sorted(latest))


def gpu_uuid(device: torch.device) -> str | None:
    """As NVML has it; None: it is no GPU."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def gpu_usage(reading: GpuReading) -> GpuUsage:
    return GpuUsage(
        reading.uuid,
        reading.utilization,
        reading.memory_used_bytes,
        reading.memory_total_bytes,
        reading.power_w,
        reading.temperature_c,
    )
