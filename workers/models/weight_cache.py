"""Files of packed weights that all workers of a host map and share through the page cache.

    DIRECTORY/<key>.weights     header, one page | contents
    DIRECTORY/<key>.lock        held by the one that writes; the others wait for it, then map
    DIRECTORY/<key>.<pid>.part  being written; renamed when it is whole

The key is a digest of all that the contents depend on. A file that has not been used for `UNUSED_DAYS` is removed when
another is written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_digest, xxh3_64_intdigest

log = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]
Fill = Callable[[Bytes], None]

MAGIC = b"slipstream weights 1"
HEADER_BYTES = 4096
UNUSED_DAYS = 14
HUGE_PAGE_BYTES = 2 << 20
_HEADER = struct.Struct("<24s32sQQ16s")  # magic, key, bytes of contents, their checksum, boot; its own checksum follows


def default_directory() -> Path:
    """`slipstream/weights` in the user's cache directory (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "slipstream" / "weights"


def cached(directory: Path | None, key: bytes, num_bytes: int, fill: Fill) -> Bytes:
    """`num_bytes` bytes, 64-byte aligned, that `fill` has written, in this process or in an earlier one.

    Read-only and shared where the directory can be used; otherwise, after a warning, and without one where
    `directory` is None, in memory of this process. `key` is 32 bytes.
    """
    if directory is None:
        return _private(num_bytes, fill)
    try:
        return _shared(directory, key, num_bytes, fill)
    except OSError as error:
        log.warning("%s: packed weights cannot be kept there (%s): they take memory in each worker", directory, error)
        return _private(num_bytes, fill)


def _private(num_bytes: int, fill: Fill) -> Bytes:
    memory = mmap.mmap(-1, max(1, num_bytes))
    if num_bytes >= HUGE_PAGE_BYTES:
        memory.madvise(mmap.MADV_HUGEPAGE)
    contents = np.frombuffer(memory, np.uint8, num_bytes)
    fill(contents)
    return contents


def _shared(directory: Path, key: bytes, num_bytes: int, fill: Fill) -> Bytes:
    """Raises OSError if the directory is not writable or full."""
    path = directory / f"{key.hex()}.weights"
    contents = _open(path, key, num_bytes)
    if contents is not None:
        return contents
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        contents = _open(path, key, num_bytes)  # somebody else may have written it meanwhile
        if contents is None:
            _remove_unused(directory, path.stem)
            _write(path, key, num_bytes, fill)
            contents = _open(path, key, num_bytes)
    if contents is None:
        raise OSError(errno.EIO, "what was written cannot be read back", str(path))
    return contents


def _open(path: Path, key: bytes, num_bytes: int) -> Bytes | None:
    """The contents, or None if there is no such file or it is not whole."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
            if os.fstat(file.fileno()).st_size != HEADER_BYTES + num_bytes or len(header) != HEADER_BYTES:
                return None
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except FileNotFoundError:
        return None
    contents = np.frombuffer(mapped, np.uint8, num_bytes, HEADER_BYTES)
    fields, own_checksum = header[: _HEADER.size], header[_HEADER.size : _HEADER.size + 8]
    if own_checksum != xxh3_64_digest(fields):
        return None
    magic, its_key, its_bytes, checksum, boot = _HEADER.unpack(fields)
    if magic.rstrip(b"\0") != MAGIC or its_key != key or its_bytes != num_bytes:
        return None
    # A machine that went down may have kept the name and lost the bytes, which were never forced to the disk.
    if boot != _boot() and checksum != xxh3_64_intdigest(contents.data):
        return None
    with contextlib.suppress(OSError):  # marks it as used; somebody else's file will do without
        os.utime(path)
    return contents


def _write(path: Path, key: bytes, num_bytes: int, fill: Fill) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("w+b") as file:
            # Takes the room now: a disk that fills up under a mapping ends the process.
            os.posix_fallocate(file.fileno(), 0, HEADER_BYTES + num_bytes)
            # Not closed by hand: an error in `fill` holds on to the contents, and would be hidden by that of closing.
            mapped = mmap.mmap(file.fileno(), 0)
            contents = np.frombuffer(mapped, np.uint8, num_bytes, HEADER_BYTES)
            fill(contents)
            fields = _HEADER.pack(MAGIC, key, num_bytes, xxh3_64_intdigest(contents.data), _boot())
            mapped[: _HEADER.size + 8] = fields + xxh3_64_digest(fields)
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _remove_unused(directory: Path, stem: str) -> None:
    """Removes what nobody has used for long, and what a writer of this key has left when it was killed."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            is_left_over = path.suffix == ".part" and path.name.startswith(stem)
            if is_left_over or (path.suffix in (".weights", ".part", ".lock") and path.stat().st_mtime < oldest):
                path.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[Any]:
    with path.open("a") as lock:
        os.utime(path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _boot() -> bytes:
    """Names the time since the machine started."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot_id = os.urandom(16)  # never the same twice: contents are always checked
    return hashlib.blake2b(boot_id, digest_size=16).digest()
