"""What a source of models can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipstream.router.model_files.sources.checksum import Checksum
from slipstream.router.model_files.sources.weights_url import WeightsUrl

MAX_JSON_BYTES = 64 << 20  # of an index


class SourceError(Exception):
    """The source does not give what is asked for. The text is one sentence that names it."""


class SourceUnreachable(SourceError):  # noqa: N818 - reads as the sentence it carries
    """It does not answer, or its connection broke: trying again may help."""


class SourceRefused(SourceError):  # noqa: N818 - reads as the sentence it carries
    """It answers, and refuses: the token, the name, the revision."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file by its name below the model's folder. `stamp` is another one when the content is another one, as far as
    the source says so (an ETag, a time)."""

    name: str
    num_bytes: int
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a model's folder, with those below it. `revision` stands for their content, if the source says it
    (the commit of a repository); "" otherwise."""

    files: tuple[SourceFile, ...]
    revision: str = ""


class WeightsSource(Protocol):
    """A model at an address. All methods block, and may be called from several threads."""

    @property
    def url(self) -> WeightsUrl: ...

    def listing(self) -> Listing:
        """Raises SourceError."""

    def stream(self, file: SourceFile, begin: int, end: int) -> AbstractContextManager[Iterator[bytes]]:
        """The bytes of a file from `begin` up to `end`, in pieces. The content is that of the listing, or the checksum
        tells. Raises SourceError, also while it is read."""

    def checksum(self, file: SourceFile) -> Checksum | None:
        """What the content of the file has to match; None if the source does not say. Raises SourceError."""

    def local_copy(self, file: SourceFile) -> Path | None:
        """A copy of the file that another program has on this machine."""


def read_range(source: WeightsSource, file: SourceFile, begin: int, end: int) -> bytes:
    """Raises SourceError."""
    with source.stream(file, begin, end) as pieces:
        content = b"".join(pieces)
    if len(content) != end - begin:
        raise SourceUnreachable(f"{source.url}: {file.name} ended after {len(content)} bytes of {end - begin}")
    return content
