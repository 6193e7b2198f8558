"""A small process that cleans up after a driver that could not do so itself (`kill -9`, out of memory).

Most of what Ray starts ends by itself with the driver, but not all of it, and not at once: its agents stay for a
minute. The driver holds the other end of this process's stdin, and writes to it what has to be removed, one line each:

    process PID START_TIME
    path FILE_OR_DIRECTORY
    path-of PID START_TIME FILE_OR_DIRECTORY     only if that process is gone as well

At the end of its input, that is when the driver is gone for whatever reason, the reaper kills and removes what is left,
and ends.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import psutil

from slipstream.cluster.processes import process_tree
from slipstream.router.process.module_command import module_command

PATIENCE_S = 1.0


class Reaper:
    """The driver's side: starts the process; `close` lets it end and waits for that."""

    def __init__(self, cluster_id: str) -> None:
        # In a session of its own, so that Ctrl-C at the terminal does not reach it.
        self._process = subprocess.Popen(
            module_command("slipstream.cluster.processes.reaper", cluster_id),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._known: set[tuple[int, float]] = set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, running: Iterable[psutil.Process]) -> None:
        for process in running:
            started = process_tree.start_time(process.pid)
            if started is not None and process.pid != self.pid and (process.pid, started) not in self._known:
                self._known.add((process.pid, started))
                self._write(f"process {process.pid} {started}\n")

    def remove(self, path: Path) -> None:
        self._write(f"path {path}\n")

    def remove_after(self, pid: int, started: float, path: Path) -> None:
        """Removes the path, if the process that it belongs to is gone by then."""
        self._write(f"path-of {pid} {started} {path}\n")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=15.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:  # somebody has killed it; the cluster serves on without it
            return


def reap(cluster_id: str, source: IO[str]) -> None:
    watched: list[tuple[int, float]] = []
    paths: list[Path] = []
    paths_of: list[tuple[int, float, Path]] = []
    for line in source:
        kind, _, rest = line.rstrip("\n").partition(" ")
        if kind == "process":
            pid, _, started = rest.partition(" ")
            watched.append((int(pid), float(started)))
        elif kind == "path":
            paths.append(Path(rest))
        elif kind == "path-of":
            pid, started, its_path = rest.split(" ", 2)
            paths_of.append((int(pid), float(started), Path(its_path)))
    alive = [psutil.Process(pid) for pid, started in watched if process_tree.is_running(pid, started)]
    roots = [*alive, *process_tree.marked(cluster_id)]
    family = {*roots, *(child for root in roots for child in process_tree.children(root))}
    process_tree.wait_or_kill(family, PATIENCE_S)
    paths += [path for pid, started, path in paths_of if not process_tree.is_running(pid, started)]
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    reap(sys.argv[1], sys.stdin)
