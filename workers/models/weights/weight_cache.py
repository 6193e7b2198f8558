"""Files of packed weights that all workers of a host map and share through the page cache.

    DIRECTORY/<key>.<user>.weights     header, one page | contents
    DIRECTORY/<key>.<user>.lock        held by the writer; the others wait for it, then map the file
    DIRECTORY/<key>.<user>.<pid>.part  being written; renamed when it is complete

The key is a digest of everything that the contents depend on. A file that has not been used for `UNUSED_DAYS` is
removed when another one is written.

Users may share the directory. What a worker maps decides what it computes, so it maps only files of its own user and of
root, and none that others may write to.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_digest, xxh3_64_intdigest

log = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]
Fill = Callable[[Bytes], None]

MAGIC = b"slipstream weights 1"
SUFFIX = ".weights"
ROOT = 0  # the user
HEADER_BYTES = 4096
UNUSED_DAYS = 14
HUGE_PAGE_BYTES = 2 << 20
_HEADER = struct.Struct("<24s32sQQ16s")  # magic, key, bytes of contents, their checksum, boot; its own checksum follows


def default_directory() -> Path:
    """`slipstream/weights` in the user's cache directory (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # By the specification, relative paths are ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "slipstream" / "weights"


def cached(directory: Path | None, key: bytes, num_bytes: int, fill: Fill) -> Bytes:
    """`num_bytes` bytes, 64-byte aligned, that `fill` has written, in this process or in an earlier one.

    They are read-only and shared if the directory can be used. Otherwise they are in memory of this process, after a
    warning (or without one if `directory` is None). `key` is 32 bytes.
    """
    if directory is None:
        return _private(num_bytes, fill)
    try:
        return _shared(directory, key, num_bytes, fill)
    except OSError as error:
        log.warning("%s: packed weights cannot be kept there (%s): they take memory in each worker", directory, error)
        return _private(num_bytes, fill)


def known(directory: Path, key: bytes) -> Bytes | None:
    """The contents that were written under a key, whatever their size; None if there are none."""
    try:
        return _find(directory, key, None)
    except OSError:
        return None


def forget(directory: Path | None, key: bytes) -> None:
    """Removes what this user has written under a key. What processes have mapped of it stays as it is."""
    if directory is not None:
        with contextlib.suppress(OSError):
            _own_path(directory, key).unlink(missing_ok=True)


def keep_newest(directory: Path, prefix: bytes, count: int) -> None:
    """Of what this user has written under keys that begin with `prefix`, removes all but the `count` files that were
    used last. What processes have mapped of them stays as it is."""
    used_ns: dict[Path, int] = {}
    for path in directory.glob(f"{prefix.hex()}*.{os.geteuid()}{SUFFIX}"):
        with contextlib.suppress(OSError):  # another process has removed it
            used_ns[path] = path.stat().st_mtime_ns
    for path in sorted(used_ns, key=lambda path: -used_ns[path])[count:]:
        with contextlib.suppress(OSError):
            path.unlink()


@contextmanager
def loading(directory: Path, key: bytes) -> Iterator[None]:
    """Held by a process that loads what it may have to write under a key: others wait for it, so that they need not
    load the same. Where the directory cannot be used, none waits."""
    with ExitStack() as stack:
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(_own_path(directory, key).with_suffix(".loading.lock")))
        yield


def _private(num_bytes: int, fill: Fill) -> Bytes:
    memory = mmap.mmap(-1, max(1, num_bytes))
    if num_bytes >= HUGE_PAGE_BYTES:
        memory.madvise(mmap.MADV_HUGEPAGE)
    contents = np.frombuffer(memory, np.uint8, num_bytes)
    fill(contents)
    return contents


def _shared(directory: Path, key: bytes, num_bytes: int, fill: Fill) -> Bytes:
    """The shared contents. Raises OSError if the directory is not writable or full."""
    contents = _find(directory, key, num_bytes)
    if contents is not None:
        return contents
    path = _own_path(directory, key)
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        contents = _open(path, key, num_bytes)  # another process may have written it meanwhile
        if contents is None:
            _remove_unused(directory, f"{path.stem}.")
            _write(path, key, num_bytes, fill)
            contents = _open(path, key, num_bytes)
    if contents is None:
        raise OSError(errno.EIO, "what was written cannot be read back", str(path))
    return contents


def _path(directory: Path, key: bytes, user: int) -> Path:
    return directory / f"{key.hex()}.{user}{SUFFIX}"


def _own_path(directory: Path, key: bytes) -> Path:
    return _path(directory, key, os.geteuid())


def _find(directory: Path, key: bytes, num_bytes: int | None) -> Bytes | None:
    """What this user has written, or else root. `num_bytes` as for `_open`."""
    for user in dict.fromkeys((os.geteuid(), ROOT)):
        if (contents := _open(_path(directory, key, user), key, num_bytes)) is not None:
            return contents
    return None


def _open(path: Path, key: bytes, num_bytes: int | None) -> Bytes | None:
    """The contents, of any size if `num_bytes` is None; None if there is no such file, or if it is incomplete or may
    have been written by other users."""
    try:
        # Not to wait for a writer, should the name be that of a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not _is_trusted(status):
                log.warning("%s is not used: it belongs to another user, or others may write to it", path)
                return None
            header = file.read(HEADER_BYTES)
            num_bytes = status.st_size - HEADER_BYTES if num_bytes is None else num_bytes
            if status.st_size != HEADER_BYTES + num_bytes or len(header) != HEADER_BYTES:
                return None
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            mapped.madvise(mmap.MADV_WILLNEED)  # what is not in memory is read ahead, not page by page
    except (FileNotFoundError, PermissionError):
        return None
    contents = np.frombuffer(mapped, np.uint8, num_bytes, HEADER_BYTES)
    fields, own_checksum = header[: _HEADER.size], header[_HEADER.size : _HEADER.size + 8]
    if own_checksum != xxh3_64_digest(fields):
        return None
    magic, its_key, its_bytes, checksum, boot = _HEADER.unpack(fields)
    if magic.rstrip(b"\0") != MAGIC or its_key != key or its_bytes != num_bytes:
        return None
    # A crash of the machine may have kept the name but lost the bytes, which are never forced to disk.
    if boot != _boot() and checksum != xxh3_64_intdigest(contents.data):
        return None
    with contextlib.suppress(OSError):  # marks it as used, if it is ours to mark
        os.utime(path)
    return contents


def _is_trusted(status: os.stat_result) -> bool:
    """Whether a file is one that only this user and root can have written."""
    is_own = stat.S_ISREG(status.st_mode) and status.st_uid in (ROOT, os.geteuid())
    return is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _write(path: Path, key: bytes, num_bytes: int, fill: Fill) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        # A new file, not what a name or a link of another user leads to.
        opened = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(opened, "w+b") as file:
            if not _is_trusted(os.fstat(file.fileno())):
                raise OSError(errno.EPERM, "the file system does not keep owners and rights of files", str(part))
            # Allocates the space now, because a disk that fills up under a mapping kills the process.
            os.posix_fallocate(file.fileno(), 0, HEADER_BYTES + num_bytes)
            # Not closed explicitly: if `fill` fails, its error keeps a reference to the contents, and closing the
            # mapping would raise another error that hides it.
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
    """Removes files that were not used for a long time, and what a killed writer of this key has left."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            is_left_over = path.suffix == ".part" and path.name.startswith(stem)
            if is_left_over or (path.suffix in (SUFFIX, ".part", ".lock") and path.stat().st_mtime < oldest):
                path.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[Any]:
    # The name may be known to other users: not what a link of theirs leads to, and no pipe.
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    with os.fdopen(opened, "r+b") as lock:
        if not _is_trusted(os.fstat(opened)):
            raise OSError(errno.EPERM, "belongs to another user, or others may write to it", str(path))
        os.utime(opened)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _boot() -> bytes:
    """An id of the present boot of the machine."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot_id = os.urandom(16)  # different each time, so that contents are always checked
    return hashlib.blake2b(boot_id, digest_size=16).digest()
