"""Files beside the database: what is too large for a row, or grows. Every call blocks.

A file named ID belongs to the object of this id. ID.SUFFIX is on its way to be one, or belongs to a pinned object that
works with it. Who writes such a file holds a lock on it (flock), which ends with the process:

    ID.new  --written, fsync--> renamed ID --> row in the database --> unlocked
                                            row removed --> file removed

So a file that has no object and no lock was left by a process that died, and `sweep` removes it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from slipstream.router.store.store_errors import StoreError


class NewBlob:
    """A file that is being written. Life cycle: `write`s, `finish`, then the object is put, then `close`; or, at any
    time, `abandon`, which leaves nothing."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        """Raises StoreError."""
        self._path = path
        self._temporary = path.with_name(f"{path.name}.new")
        self._fsync = fsync
        with file_errors(path):
            self._file = self._begin()

    def _begin(self) -> BinaryIO:
        while True:
            file = locked(self._temporary, "xb", fcntl.LOCK_EX)
            if file is not None:
                return file

    def write(self, data: bytes | memoryview) -> None:
        with file_errors(self._path):
            self._file.write(data)

    def finish(self) -> int:
        """Gives the file its name. Returns its size in bytes."""
        with file_errors(self._path):
            self._file.flush()
            if self._fsync:
                os.fsync(self._file.fileno())
            self._temporary.rename(self._path)
            if self._fsync:
                sync_folder(self._path.parent)
            return os.fstat(self._file.fileno()).st_size

    def abandon(self) -> None:
        for path in (self._temporary, self._path):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        with suppress(OSError):  # what could not be written was reported before
            self._file.close()


class BlobFolder:
    """The folder of these files."""

    def __init__(self, folder: Path, *, fsync: bool) -> None:
        self._folder = folder
        self.fsync = fsync

    def make(self) -> None:
        """Raises StoreError."""
        with file_errors(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        return self._folder / name

    def begin(self, object_id: str) -> NewBlob:
        """The file of an object to come. Raises StoreError."""
        return NewBlob(self.path(object_id), fsync=self.fsync)

    def remove(self, object_ids: Iterable[str]) -> None:
        for object_id in object_ids:
            with suppress(OSError):  # the next sweep tries again
                self.path(object_id).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Of all files. Raises StoreError."""
        with file_errors(self._folder):
            return os.listdir(self._folder)

    def sweep(self, names: Iterable[str], is_known: Callable[[str, bool], bool]) -> int:
        """Removes which of these files dead processes have left. `is_known` is asked about an object's id, and whether
        only a pinned object counts: others have no files with a suffix. Returns how many were removed. Raises
        StoreError."""
        return sum(_remove_orphan(self.path(name), is_known) for name in names)


def _remove_orphan(path: Path, is_known: Callable[[str, bool], bool]) -> bool:
    object_id, dot, _ = path.name.partition(".")
    if is_known(object_id, bool(dot)):
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_known(object_id, bool(dot)):  # by now
                return False
            path.unlink(missing_ok=True)
            return True
    except OSError:  # it is locked, or gone
        return False


def locked(path: Path, mode: Literal["ab", "rb", "xb"], operation: int) -> BinaryIO | None:
    """The file at a path, opened and locked (`fcntl.flock`); None: another one has the lock, or the file was removed
    between both. Raises OSError."""
    with ExitStack() as cleanup:
        file = cleanup.enter_context(path.open(mode))
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(file, operation)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                cleanup.pop_all()
                return file
    return None


def sync_folder(folder: Path) -> None:
    """The names in a folder survive a loss of power from now on."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Raises StoreError in place of OSError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path.name} cannot be used: {error.strerror or error}") from error
