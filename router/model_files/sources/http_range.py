"""Parts of a file over HTTP (RFC 9110, section 14)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def range_header(begin: int, end: int, num_bytes: int) -> dict[str, str]:
    """The header that asks for the bytes from `begin` up to `end`; none for the whole file."""
    return {} if (begin, end) == (0, num_bytes) else {"Range": f"bytes={begin}-{end - 1}"}


def skipped(pieces: Iterable[bytes], num_skipped: int, num_bytes: int) -> Iterator[bytes]:
    """`num_bytes` bytes after the first `num_skipped`, which a server sends that does not know ranges."""
    for piece in pieces:
        skip = min(num_skipped, len(piece))
        num_skipped -= skip
        part = piece[skip : skip + num_bytes]
        num_bytes -= len(part)
        if part:
            yield part
        if not num_bytes:
            return
