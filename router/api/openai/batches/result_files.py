"""The files that a batch works with, beside the store's blobs. Every call blocks.

    ID.input     the input as it was when the batch was created (a hard link)
    ID.output    results, one line each, in the order in which they came; locked by the process that serves the batch
    ID.errors    the lines that failed

A line counts once it is whole. So what a killed process had written is known from the files alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import orjson

from slipstream.router.store.blob_folder import BlobFolder, NewBlob, file_errors

COPY_BYTES = 1 << 20


class ResultFiles:
    """Life cycle: `claim`, `recover`, then `append`s, then `sorted_copy` of each file, then `remove`; and `close`, at
    any time. Raises StoreError."""

    def __init__(self, blobs: BlobFolder, batch_id: str) -> None:
        self._blobs = blobs
        self.input_path = blobs.path(f"{batch_id}.input")
        self._paths = blobs.path(f"{batch_id}.output"), blobs.path(f"{batch_id}.errors")
        self._lock: BinaryIO | None = None
        self._files: dict[bool, BinaryIO] = {}
        self._copies: list[NewBlob] = []  # whose objects are not in the store yet

    def keep_input(self, file_id: str) -> int:
        """The input as it is now, whatever becomes of the file. Returns its size in bytes."""
        source = self._blobs.path(file_id)
        with file_errors(self.input_path):
            try:
                os.link(source, self.input_path)
            except FileExistsError:  # from a router that was killed while it created the batch
                pass
            except PermissionError:  # a file system without links
                shutil.copyfile(source, self.input_path)
            return self.input_path.stat().st_size

    def claim(self) -> bool:
        """Makes this process the one that serves the batch; False: another one does, or it is over. It ends with the
        process, however that ends."""
        path = self._paths[0]  # the input may be that of other batches, too, and a lock is one of the file behind names
        with file_errors(path):
            self._lock = path.open("ab")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return os.path.samestat(path.stat(), os.fstat(self._lock.fileno()))
            except (BlockingIOError, FileNotFoundError):  # or it was removed just before
                return False

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
