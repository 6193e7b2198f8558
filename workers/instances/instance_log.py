"""The files that take the output of instances. Those of one name have the same file."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

MAX_LOG_BYTES = 16 << 20  # then a file is emptied, and its end kept in another one
TAIL_BYTES = 4096

log = logging.getLogger(__name__)


def opened(file: Path) -> int:
    """A descriptor that appends to the file. Raises OSError."""
    trim([file])
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def tail_of(file: Path, start: int) -> str:
    """The end of what was written since the file had `start` bytes."""
    with contextlib.suppress(OSError), file.open("rb") as text:
        end = text.seek(0, os.SEEK_END)
        text.seek(max(start if start <= end else 0, end - TAIL_BYTES))  # it was emptied if it is shorter
        return text.read().decode(errors="replace")
    return ""


def trim(files: Iterable[Path]) -> None:
    """Empties files that are too large. Processes that append to one go on; what they write in this moment is lost."""
    for file in files:
        try:
            _trim(file)
        except OSError as error:
            log.warning("the log %s could not be emptied: %s", file, error)


def _trim(file: Path) -> None:
    if not file.exists() or file.stat().st_size <= MAX_LOG_BYTES:
        return
    with file.open("r+b") as text:
        text.seek(-MAX_LOG_BYTES, os.SEEK_END)
        file.with_suffix(".old.log").write_bytes(text.read(MAX_LOG_BYTES))
        text.truncate(0)
