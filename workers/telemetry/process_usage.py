"""What a process takes of its host."""

from __future__ import annotations

from dataclasses import dataclass, field

import psutil


@dataclass(slots=True)
class ProcessUsage:
    """Of this process with all its threads, without the further ranks of its group, which are processes of their
    own."""

    _process: psutil.Process = field(default_factory=psutil.Process)

    def counters(self) -> dict[str, float]:
        """Seconds of processors since the process began, and the memory that it occupies now."""
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
        return {"cpu_seconds": times.user + times.system, "resident_memory_bytes": float(memory.rss)}
