"""The content of a file as a digest, and a cache of digests for files that have not changed since.

A digest is XXH3-128 over all bytes (20 GB/s on one core; files in the page cache are read at about 7 GB/s). It protects
against mistakes, not against a file that was constructed to have the digest of another one.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from xxhash import xxh3_64_hexdigest, xxh3_128

from slipstream.router.process.cache_folder import cache_folder

BUFFER_BYTES = 1 << 20
# The clock that stamps files ticks every few milliseconds: a file that is written twice within a tick has one stamp. So
# a stamp that was taken within this time after a write does not stand for the content.
SETTLED_S = 2.0
UNUSED_DAYS = 60


class FilesChanged(ValueError):  # noqa: N818 - reads as the sentence it carries
    """A file of a model is not, or no longer, what it should be. The text is one sentence that names the file."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What a file system notes of a file beside its content. The ctime of a local file system changes with every write,
    and unlike the mtime no program can set it back (as `cp -p`, rsync and unpacking tools do)."""

    device: int
    inode: int
    num_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        """Follows symbolic links. Raises OSError."""
        return cls._of(path.stat())

    @classmethod
    def of_open(cls, fd: int) -> FileStamp:
        return cls._of(os.fstat(fd))

    def is_settled(self, now_s: float) -> bool:
        """Whether the next write gives another stamp. (Where the clock of a file server is ahead, files have stamps of
        the future.)"""
        return abs(now_s - self.ctime_ns / 1e9) >= SETTLED_S

    def is_of_same_file(self, other: FileStamp) -> bool:
        """Also on another host that mounts the same file system, where the device has another number."""
        return replace(self, device=other.device) == other

    @classmethod
    def _of(cls, stat: os.stat_result) -> FileStamp:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The digest of a file with the stamp that it had. `is_settled`: whenever there is a file with this stamp, it has
    this content."""

    digest: str
    stamp: FileStamp
    is_settled: bool


def read_digest(path: Path) -> FileDigest:
    """Reads the whole file. Raises OSError, and FilesChanged if it is written meanwhile."""
    now_s = time.time()
    digest, buffer = xxh3_128(), memoryview(bytearray(BUFFER_BYTES))
    with path.open("rb", buffering=0) as file:
        before = FileStamp.of_open(file.fileno())
        while num_bytes := file.readinto(buffer):
            digest.update(buffer[:num_bytes])
        after = FileStamp.of_open(file.fileno())
    if (before.num_bytes, before.mtime_ns) != (after.num_bytes, after.mtime_ns):
        raise FilesChanged(f"{path} was written while it was read")
    # The ctime of a file also changes when its name or its permissions do, which does not matter here.
    is_settled = before == after and before.is_settled(now_s)
    return FileDigest(digest.hexdigest(), before, is_settled)


class DigestCache:
    """Digests by stamp, in this object and as small files in a directory that all processes of a user share."""

    def __init__(self, directory: Path | None) -> None:
        """None: only in this object. A directory that cannot be used is no error."""
        self._directory = directory
        self._seen: dict[FileStamp, str] = {}

    @classmethod
    def of_user(cls) -> DigestCache:
        """In `digests` in the user's cache folder."""
        folder = cache_folder()
        return cls(None if folder is None else folder / "digests")

    def digest_of(self, path: Path, *, is_fresh: bool = False) -> FileDigest:
        """The digest of a file, which is read if its stamp is not known. With `is_fresh` it is read in any case. Raises
        OSError, FilesChanged."""
        stamp = FileStamp.of(path)
        known = None if is_fresh else self._known(stamp)
        if known is not None:
            return FileDigest(known, stamp, True)
        found = read_digest(path)
        if found.is_settled:
            self._remember(found)
        return found

    def _path(self, stamp: FileStamp) -> Path | None:
        name = xxh3_64_hexdigest(_line(stamp, "").encode())
        return None if self._directory is None else self._directory / f"{name}.digest"

    def _known(self, stamp: FileStamp) -> str | None:
        if stamp in self._seen:
            return self._seen[stamp]
        path = self._path(stamp)
        if path is None or not stamp.is_settled(time.time()):
            return None
        try:
            line = path.read_text("ascii")
            digest = line.rpartition(" ")[2].strip()
            if line != _line(stamp, digest) or len(digest) != 32:
                return None
            os.utime(path)  # marks it as used
        except (OSError, UnicodeDecodeError):
            return None
        self._seen[stamp] = digest
        return digest

    def _remember(self, found: FileDigest) -> None:
        self._seen[found.stamp] = found.digest
        path = self._path(found.stamp)
        if path is None:
            return
        part = path.with_suffix(f".{os.getpid()}.part")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(_line(found.stamp, found.digest), "ascii")
            part.replace(path)
            self._remove_unused(path.parent)

    @staticmethod
    def _remove_unused(directory: Path) -> None:
        oldest = time.time() - UNUSED_DAYS * 24 * 3600
        for path in directory.iterdir():
            with suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


def _line(stamp: FileStamp, digest: str) -> str:
    """The contents of a file of the cache."""
    numbers = (stamp.device, stamp.inode, stamp.num_bytes, stamp.mtime_ns, stamp.ctime_ns)
    return f"xxh3-128 {' '.join(map(str, numbers))} {digest}\n"
