"""A source of models in memory, for the cache's tests, with the faults that real ones have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.router.model_files.sources.checksum import Checksum
from slipstream.router.model_files.sources.weights_source import (
    Listing,
    SourceFile,
    SourceRefused,
    SourceUnreachable,
)
from slipstream.router.model_files.sources.weights_url import WeightsUrl

PIECE_BYTES = 1000


@dataclass(slots=True)
class MemorySource:
    """`cuts`: after how many bytes the next reads of more than a piece break off. `wrong`: how often a file still
    arrives altered. `num_bytes` is what has been read."""

    files: dict[str, bytes]
    url: WeightsUrl = field(default_factory=lambda: WeightsUrl("s3", "bucket/model"))
    cuts: list[int] = field(default_factory=list)
    wrong: dict[str, int] = field(default_factory=dict)
    copies: dict[str, Path] = field(default_factory=dict)
    has_checksums: bool = True
    num_bytes: int = 0

    def listing(self) -> Listing:
        return Listing(
            tuple(
                SourceFile(name, len(content), hashlib.md5(content).hexdigest()) for name, content in self.files.items()
            )
        )

    @contextmanager
    def stream(self, file: SourceFile, begin: int, end: int) -> Iterator[Iterator[bytes]]:
        if file.name not in self.files:
            raise SourceRefused(f"{self.url}: {file.name} does not exist")
        yield self._pieces(file.name, begin, end)

    def checksum(self, file: SourceFile) -> Checksum | None:
        return Checksum("sha256", hashlib.sha256(self.files[file.name]).hexdigest()) if self.has_checksums else None

    def local_copy(self, file: SourceFile) -> Path | None:
        return self.copies.get(file.name)

    def _pieces(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        content = self.files[name]
        if self.wrong.get(name):
            self.wrong[name] -= 1
            content = bytes([content[0] ^ 1]) + content[1:]
        cut = begin + self.cuts.pop(0) if self.cuts and end - begin > PIECE_BYTES else None
        for at in range(begin, end, PIECE_BYTES):
            if cut is not None and at >= cut:
                raise SourceUnreachable(f"{self.url}: {name}: the connection broke")
            piece = content[at : min(at + PIECE_BYTES, end)]
            self.num_bytes += len(piece)
            yield piece
