"""The history of a cluster as a file of JSON lines, to which changes are only ever appended.

NAME.jsonl    the latest changes        a file of MAX_BYTES becomes NAME.jsonl.1, that one NAME.jsonl.2, ...
NAME.jsonl.1  those before, ...         and the last of MAX_FILES is removed
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.fleet.author import Author
from slipstream.cluster.history.change import Change, ChangeKind
from slipstream.cluster.state.host_folders import NoHome, run_folder, state_folder

MAX_BYTES = 4 << 20  # of a file, which is about 20,000 changes
MAX_FILES = 5
MAX_UNWRITTEN = 1000  # while the disk is full
SYNC_AFTER_S = 0.05

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """Selects changes: those after this number, not before this time (seconds since the epoch), of this model."""

    after: int = 0
    since_s: float = 0.0
    model: str | None = None

    def takes(self, change: Change) -> bool:
        return (
            change.number > self.after
            and change.at_s >= self.since_s
            and (self.model is None or change.model in ("", self.model))
        )


EVERYTHING = ChangeFilter()


def history_path(name: str) -> Path:
    """The file of the cluster with this name: in `$XDG_STATE_HOME/slipstream/history`, by default below
    `~/.local/state`, which is where the XDG Base Directory Specification puts histories. A user without a home has it
    beside the state file."""
    try:
        return state_folder() / "history" / f"{name}.jsonl"
    except NoHome:
        return run_folder() / "history" / f"{name}.jsonl"


class ChangeLog:
    """Writes the history; there is one at a time for a file. A line is given to the system at once, so it survives the
    driver, and is synced to the disk shortly after, so that it survives the machine. If the file cannot be written, the
    cluster goes on: `warn` is called once, and the lines are written with the next change for which that is possible.
    """

    def __init__(self, path: Path | None, warn: Callable[[str], None] = log.warning) -> None:
        """`path` None: changes are kept in memory only, the last `MAX_UNWRITTEN`."""
        self.path = path
        self._warn = warn
        self._unwritten: deque[Change] = deque(maxlen=MAX_UNWRITTEN)
        self._is_behind = False
        self._file: int | None = None
        self._num_bytes = 0
        self._syncing: asyncio.Task[None] | None = None
        self._is_synced = True
        self._number = last_number(path) if path is not None else 0

    @classmethod
    def of_cluster(cls, name: str, warn: Callable[[str], None]) -> ChangeLog:
        """The history of the cluster with this name; in memory if it has no folder at all."""
        try:
            return cls(history_path(name), warn)
        except NoHome:
            return cls(None, warn)

    def note(
        self, author: Author, what: ChangeKind, subject: str = "", old: str = "", new: str = "", *, model: str = ""
    ) -> Change:
        """Appends a change that has been made."""
        self._number += 1
        change = Change(self._number, time.time(), author.name, what, subject, old, new, author.reason, model)
        self._unwritten.append(change)
        if self.path is not None:
            self._write(self.path)
        return change

    def latest(self, limit: int, wanted: ChangeFilter = EVERYTHING) -> list[Change]:
        """The last so many of the changes that the filter takes, in the order in which they were made. Reads files, so
        it is not for an event loop."""
        found = deque(read_changes(self.path, wanted) if self.path is not None else (), maxlen=limit)
        found.extend(change for change in list(self._unwritten) if wanted.takes(change))
        return list(found)

    def close(self) -> None:
        if self._syncing is not None:
            self._syncing.cancel()
        if self._file is not None:
            with suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = None

    def _write(self, path: Path) -> None:
        try:
            lines = b"".join(change.line for change in self._unwritten)
            os.write(self._opened(path), lines)
        except OSError as error:
            if not self._is_behind:
                self._is_behind = True
                self._warn(f"the history cannot be written to {path}: {error.strerror or error}; the cluster goes on")
            return
        self._is_behind = False
        self._unwritten.clear()
        self._num_bytes += len(lines)
        self._sync_soon()

    def _opened(self, path: Path) -> int:
        """The file to append to, which is a new one if the last one is full. Raises OSError."""
        if self._file is not None and self._num_bytes >= MAX_BYTES:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None
            for number in range(MAX_FILES - 1, 0, -1):
                with suppress(FileNotFoundError):
                    os.replace(_numbered(path, number - 1), _numbered(path, number))
        if self._file is None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._num_bytes = os.fstat(self._file).st_size
            if self._num_bytes and os.pread(self._file, 1, self._num_bytes - 1) != b"\n":
                os.write(self._file, b"\n")  # the last driver was killed in the middle of a line
        return self._file

    def _sync_soon(self) -> None:
        """One sync for all changes of a moment, in a thread, because it can take as long as the disk likes."""
        self._is_synced = False
        if self._syncing is not None and not self._syncing.done():
            return
        try:
            self._syncing = asyncio.get_running_loop().create_task(self._sync(), name="history")
        except RuntimeError:  # no loop runs, so there is nothing that must not be held up
            assert self._file is not None
            os.fsync(self._file)

    async def _sync(self) -> None:
        while not self._is_synced and self._file is not None:
            await asyncio.sleep(SYNC_AFTER_S)
            self._is_synced = True
            own = os.dup(self._file)  # the file may be exchanged for a new one meanwhile
            try:
                await asyncio.to_thread(os.fsync, own)
            except OSError as error:
                log.warning("the history could not be synced: %s", error)
            finally:
                os.close(own)


def read_changes(path: Path, wanted: ChangeFilter = EVERYTHING) -> Iterator[Change]:
    """The changes in the files of a history, the oldest first. Files that are not there, or cannot be read, have
    none."""
    for number in reversed(range(MAX_FILES)):
        with suppress(OSError), _numbered(path, number).open("rb") as file:
            for line in file:
                change = Change.of(line)
                if change is not None and wanted.takes(change):
                    yield change


def last_number(path: Path) -> int:
    """The number of the latest change; 0 if there is none."""
    for number in range(MAX_FILES):
        try:
            lines = _numbered(path, number).read_bytes().splitlines()
        except OSError:
            continue
        for line in reversed(lines):
            change = Change.of(line)
            if change is not None:
                return change.number
    return 0


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
