"""Reads the lines of a trace, from a plain file or a gzip file."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Generator
from pathlib import Path

from slipstream.cluster.tools.workload.arrival import TraceError

GZIP_MAGIC = b"\x1f\x8b"
MAX_LINE = 16 << 20  # characters, over a million hash ids


def trace_lines(path: Path) -> Generator[str, None, None]:
    """The lines one by one, whatever their line ending, without a byte order mark. The file is read once, so it may be
    a pipe. Raises TraceError with the line that cannot be read."""
    line = 0
    try:
        with path.open("rb") as packed:
            is_packed = packed.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            content = gzip.GzipFile(fileobj=packed) if is_packed else packed
            with io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape") as file:
                while text := file.readline(MAX_LINE + 1):
                    line += 1
                    if len(text) > MAX_LINE:
                        raise TraceError(path, line, f"longer than {MAX_LINE:,} characters, which no request is")
                    if not text.isascii():
                        text.encode()  # what was no UTF-8 cannot be again
                    yield text
    except UnicodeEncodeError as error:
        raise TraceError(path, line, f"not UTF-8 text: character {error.start + 1} of the line") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TraceError(path, line + 1, f"cannot be read: {reason}") from None
