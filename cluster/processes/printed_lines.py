"""What Python code prints, as lines of the log: Ray and libraries print where they do not log."""

from __future__ import annotations

import io
import logging
import threading
from typing import TextIO

MAX_REST_CHARS = 65536


class PrintedLines(io.TextIOBase):
    """In the place of `sys.stdout` or `sys.stderr`. Each line becomes a record of `name` for the handler, which
    writes elsewhere. What the handler itself prints goes to the handler's stream as it is."""

    def __init__(self, name: str, fd: int, handler: logging.StreamHandler[TextIO]) -> None:
        self._name = name
        self._fd = fd
        self._handler = handler
        self._rest = ""
        self._lock = threading.Lock()
        self._own = threading.local()  # whether this thread is in the handler

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if getattr(self._own, "writes", False):
            return self._handler.stream.write(text)
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > MAX_REST_CHARS:
                lines.append(self._rest)
                self._rest = ""
        self._own.writes = True
        try:
            for line in filter(str.strip, lines):
                self._handler.handle(logging.LogRecord(self._name, logging.INFO, "", 0, "%s", (line,), None))
        finally:
            self._own.writes = False
        return len(text)
