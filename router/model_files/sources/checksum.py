"""The checksums that sources give for their files, and their comparison with what has arrived."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

BUFFER_BYTES = 1 << 20
MIB = 1 << 20
# Sizes of the parts that tools upload: 8 MiB by the AWS CLI and boto3, 5 MiB is the smallest one, 50 MiB by s3fs.
PART_MIB = (5, 8, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 256, 512, 1024)

ChecksumKind = Literal["sha256", "git_sha1", "md5", "s3_multipart"]


@dataclass(frozen=True, slots=True)
class Checksum:
    """In lower-case hexadecimal digits. `git_sha1` is the id of a blob in git. `s3_multipart` is the MD5 of the MD5s of
    the parts in which an object was uploaded, with their number, as in `...-3`: S3 does not say how large the parts
    were, so that only parts of usual sizes can be checked."""

    kind: ChecksumKind
    value: str

    def matches(self, path: Path) -> bool | None:
        """Whether the file has this checksum; None if that cannot be known. Reads all of it. Raises OSError."""
        if self.kind == "s3_multipart":
            return _matches_parts(path, self.value)
        digest = _digest(self.kind, path.stat().st_size)
        for piece in _pieces(path):
            digest.update(piece)
        return hmac.compare_digest(digest.hexdigest(), self.value)


class _Digest(Protocol):
    def update(self, piece: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def _digest(kind: ChecksumKind, num_bytes: int) -> _Digest:
    if kind == "sha256":
        return hashlib.sha256()
    if kind == "md5":
        return hashlib.md5(usedforsecurity=False)
    return hashlib.sha1(f"blob {num_bytes}\0".encode(), usedforsecurity=False)


def _matches_parts(path: Path, value: str) -> bool | None:
    """Parts are hashed once for each usual size that gives the right number of them."""
    expected, _, count = value.partition("-")
    num_bytes = path.stat().st_size
    sizes = [size * MIB for size in PART_MIB if -(-num_bytes // (size * MIB)) == int(count)]
    for size in sizes:
        digests = []
        part = hashlib.md5(usedforsecurity=False)
        room = size
        for piece in _pieces(path):
            part.update(piece)  # BUFFER_BYTES divides all sizes
            room -= len(piece)
            if room == 0:
                digests.append(part.digest())
                part, room = hashlib.md5(usedforsecurity=False), size
        if room < size:
            digests.append(part.digest())
        if hashlib.md5(b"".join(digests), usedforsecurity=False).hexdigest() == expected:
            return True
    return None


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(BUFFER_BYTES):
            yield piece
