"""Reserves the name of a cluster on this machine."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.state.state_file import read


class AlreadyRunning(Exception):  # noqa: N818 - reads as the sentence it carries
    """A cluster of that name runs on this machine."""


@contextmanager
def claim(name: str, folder: Path, guardian: int) -> Iterator[Path]:
    """Reserves a cluster's name for this process, a driver of that guardian; yields the path of its state file, which
    may be there from a previous driver. Another guardian's is one between two drivers. Raises AlreadyRunning and
    OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}.json"
    with _opened(folder / f"{name}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _already_running(name, read(path)) from None
        other = read(path)
        if other is not None and other.pid != guardian and not other.is_stale:
            raise _already_running(name, other)
        yield path


def check_unused(name: str, folder: Path) -> None:
    """Raises AlreadyRunning if a cluster of that name runs here. `claim` is what reserves a name."""
    other = read(folder / f"{name}.json")
    if other is not None and (other.has_driver or not other.is_stale):
        raise _already_running(name, other)


def _opened(lock: Path) -> IO[str]:
    """On a file system that can only be read by now, the file of the previous driver serves as well."""
    try:
        return lock.open("w")
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return lock.open()


def _already_running(name: str, other: ClusterState | None) -> AlreadyRunning:
    if other is not None and other.is_stale and other.has_driver:
        return AlreadyRunning(f"the cluster named {name} is still ending: {other.last_words}")
    who = f" (pid {other.pid}{', ' + other.url if other.url else ''})" if other else ""
    return AlreadyRunning(
        f"a cluster named {name} runs already{who}: "
        f"stop it with `slipstream down {name}`, or choose another name with --name"
    )
