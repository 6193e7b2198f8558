"""A directory of which each host is to have a copy of its own, such as one on a slow or shared file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.router.model_files.sources.checksum import Checksum
from slipstream.router.model_files.sources.weights_source import (
    Listing,
    SourceFile,
    SourceRefused,
    SourceUnreachable,
)
from slipstream.router.model_files.sources.weights_url import WeightsUrl

PIECE_BYTES = 1 << 20


class DirectorySource:
    def __init__(self, url: WeightsUrl) -> None:
        self.url = url
        self._directory = Path(url.location)

    def listing(self) -> Listing:
        if not self._directory.is_dir():
            raise SourceRefused(f"{self.url}: there is no such directory")
        try:
            names = sorted(path for path in self._directory.rglob("*") if path.is_file())
            return Listing(tuple(map(self._file, names)))
        except OSError as error:
            raise SourceUnreachable(f"{self.url}: {error.strerror or error}") from None

    @contextmanager
    def stream(self, file: SourceFile, begin: int, end: int) -> Iterator[Iterator[bytes]]:
        try:
            opened = (self._directory / file.name).open("rb", buffering=0)
        except FileNotFoundError:
            raise SourceRefused(f"{self.url}: {file.name} is gone") from None
        except OSError as error:
            raise SourceUnreachable(f"{self.url}: {file.name}: {error.strerror or error}") from None

        def read(num_bytes: int) -> bytes:
            try:
                return opened.read(num_bytes)
            except OSError as error:
                raise SourceUnreachable(f"{self.url}: {file.name}: {error.strerror or error}") from None

        with opened:
            opened.seek(begin)
            yield pieces_of(read, end - begin)

    def checksum(self, file: SourceFile) -> Checksum | None:
        return None

    def local_copy(self, file: SourceFile) -> Path | None:
        return None

    def _file(self, path: Path) -> SourceFile:
        stat = path.stat()
        name = path.relative_to(self._directory).as_posix()
        return SourceFile(name, stat.st_size, str(stat.st_mtime_ns))


def pieces_of(read: Callable[[int], bytes], num_bytes: int) -> Iterator[bytes]:
    """The next `num_bytes` bytes of a file that is open."""
    while num_bytes and (piece := read(min(PIECE_BYTES, num_bytes))):
        num_bytes -= len(piece)
        yield piece
