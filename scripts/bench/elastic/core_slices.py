"""A slice of the processors for each worker, so that workers on one machine do not just share all of it: Linux control
groups with a CPU quota (version 1 at /sys/fs/cgroup/cpu, or version 2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

PERIOD_US = 10_000  # short, so that a worker at the end of its quota pauses for milliseconds and no longer
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


class NoSlices(Exception):  # noqa: N818 - reads as the sentence it carries
    """This user or this machine has no CPU quotas."""


class Slices:
    """Groups below `slipstream-PID`; `give` puts a process and its children into one of its own."""

    def __init__(self, cores: float) -> None:
        """Raises NoSlices."""
        self._cores = cores
        self._is_v1 = (V1 / "cpu.cfs_quota_us").exists()
        self._root = (V1 if self._is_v1 else V2) / f"slipstream-{os.getpid()}"
        self._groups: list[Path] = []
        try:
            self._root.mkdir()
            if not self._is_v1:
                (self._root / "cgroup.subtree_control").write_text("+cpu")
        except OSError as error:
            raise NoSlices(f"no CPU quotas here: {self._root}: {error.strerror}") from error

    def give(self, name: str, pids: Iterable[int]) -> None:
        """A slice for these processes together. Those that are gone are left out."""
        group = self._root / name
        if not group.exists():
            group.mkdir()
            self._groups.append(group)
            quota_us = round(self._cores * PERIOD_US)
            if self._is_v1:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        for pid in pids:
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                for one in (pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))):
                    (group / "cgroup.procs").write_text(str(one))

    def close(self) -> None:
        """Once the processes are gone."""
        for group in (*self._groups, self._root):
            with contextlib.suppress(OSError):
                group.rmdir()


@contextlib.contextmanager
def slices(cores: float) -> Iterator[Slices]:
    """Raises NoSlices."""
    made = Slices(cores)
    try:
        yield made
    finally:
        made.close()
