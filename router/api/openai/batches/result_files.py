"""The files that a batch works with, beside the store's blobs. Every call blocks.

    ID.input     the input as it was when the batch was created: a hard link, so that a lock on it is one on the upload
                 and on the inputs of all its batches; shared while the batch is created, so that no sweep removes it
    ID.output    results, one line each, in the order in which they came; locked by the process that serves the batch
    ID.errors    the lines that failed

A line counts once it is whole. So what a killed process had written is known from the files alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import orjson

from slipstream.router.store.blob_folder import BlobFolder, NewBlob, file_errors, locked, sync_folder

NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class ResultFiles:
    """Life cycle of a batch to come: `keep_input`, then its object is put, then `close`. To serve one: `claim`,
    `recover`, then `append`s, then `sorted_copy` of each file, then `remove`; and `close`, at any time. Raises
    StoreError."""

    def __init__(self, blobs: BlobFolder, batch_id: str) -> None:
        self._blobs = blobs
        self.input_path = blobs.path(f"{batch_id}.input")
        self._paths = blobs.path(f"{batch_id}.output"), blobs.path(f"{batch_id}.errors")
        self._lock: BinaryIO | None = None
        self._files: dict[bool, BinaryIO] = {}
        self._copies: list[NewBlob] = []  # whose objects are not in the store yet

    def keep_input(self, file_id: str) -> int:
        """The input as it is now, whatever becomes of the file. Returns its size in bytes. No sweep removes it until
        `close`."""
        source = self._blobs.path(file_id)
        with file_errors(self.input_path):
            while self._lock is None:  # again if a sweep came between the link and the lock
                with suppress(FileExistsError):  # from a router that was killed while it created the batch
                    self._link(source)
                with suppress(FileNotFoundError):
                    self._lock = locked(self.input_path, "rb", fcntl.LOCK_SH)
            if self._blobs.fsync:
                sync_folder(self.input_path.parent)
            return os.fstat(self._lock.fileno()).st_size

    def _link(self, source: Path) -> None:
        try:
            os.link(source, self.input_path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            copy = self.input_path.with_name(f"{self.input_path.name}.new")
            shutil.copyfile(source, copy)
            copy.rename(self.input_path)

    def claim(self) -> bool:
        """Makes this process the one that serves the batch; False: another one does, or has just ended it. It ends
        with the process, however that ends. Makes a file, which `remove` removes."""
        with file_errors(self._paths[0]):
            self._lock = locked(self._paths[0], "ab", fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._lock is not None

    def recover(self) -> tuple[dict[str, bool], int]:
        """The `custom_id`s that have a result, and whether that is a success. Half a line, which a killed process has
        left, is removed. Also returns the bytes of the files."""
        found: dict[str, bool] = {}
        num_bytes = 0
        for is_success, path in zip((True, False), self._paths, strict=True):
            with file_errors(path):
                file = path.open("a+b")
                self._files[is_success] = file
                file.seek(0)
                end = 0
                for line in file:
                    custom_id = _custom_id(line)
                    if custom_id is None:
                        break
                    found[custom_id] = is_success
                    end += len(line)
                file.truncate(end)
                num_bytes += end
        return found, num_bytes

    def append(self, is_success: bool, lines: bytes) -> None:
        """Adds whole lines. They outlive the process when this returns."""
        file = self._files[is_success]
        with file_errors(self._paths[0 if is_success else 1]):
            file.write(lines)
            file.flush()
            if self._blobs.fsync:
                os.fdatasync(file.fileno())

    def sorted_copy(self, is_success: bool, blob_id: str, positions: dict[str, int]) -> bool:
        """Writes a blob with the results in the order of `positions`, by `custom_id`; False: there are none. It is
        locked until `close`."""
        path = self._paths[0 if is_success else 1]
        with file_errors(path), path.open("rb") as file:
            lines = sorted(_lines(file, positions))
            if lines:
                self._blobs.path(f"{blob_id}.new").unlink(missing_ok=True)  # of a process that was killed
                blob = self._blobs.begin(blob_id)
                self._copies.append(blob)
                for _, offset, num_bytes in lines:
                    file.seek(offset)
                    blob.write(file.read(num_bytes))
                blob.finish()
            return bool(lines)

    def remove(self) -> None:
        """The batch is over."""
        for path in (*self._paths, self.input_path):
            with suppress(OSError):  # the next start of a router removes it
                path.unlink(missing_ok=True)

    def close(self) -> None:
        for file in (*self._files.values(), self._lock):
            if file is not None:
                with suppress(OSError):
                    file.close()
        for blob in self._copies:
            blob.close()
        self._files, self._copies, self._lock = {}, [], None

    def abandon_copies(self) -> None:
        """There is no room for the files for the creator."""
        for blob in self._copies:
            blob.abandon()
        self._copies.clear()


def _lines(file: BinaryIO, positions: dict[str, int]) -> Iterator[tuple[int, int, int]]:
    """Position, offset and length of each line."""
    offset = 0
    for line in file:
        custom_id = _custom_id(line)
        assert custom_id is not None, "this process has written the line"
        yield positions[custom_id], offset, len(line)
        offset += len(line)


def _custom_id(line: bytes) -> str | None:
    """None: it is half a line, or no result."""
    if not line.endswith(b"\n"):
        return None
    try:
        return str(orjson.loads(line)["custom_id"])
    except (ValueError, KeyError, TypeError):
        return None
