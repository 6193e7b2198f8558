"""What the operator sees at the terminal: lines with times, and one status line that changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Console:
    """Writes lines to a stream. `pending` shows what is being waited for, but only at a terminal."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._begin_s = clock()
        self.is_live = stream.isatty()
        self._turns = 0
        self._shown = ""
        self.stages: list[tuple[str, float]] = []

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._begin_s

    def step(self, text: str) -> None:
        """Shows a completed step of the start."""
        self.stages.append((text, self.elapsed_s))
        self._line(f"{self.elapsed_s:5.1f} s  {text}")

    def say(self, text: str = "") -> None:
        self._line(text)

    def event(self, text: str) -> None:
        """Shows something that happened while serving."""
        self._line(f"{time.strftime('%H:%M:%S')}  {text}")

    def pending(self, text: str) -> None:
        if not self.is_live:
            return
        self._turns += 1
        self._shown = f"{self.elapsed_s:5.1f} s  {SPINNER[self._turns % len(SPINNER)]} {text}"[:100]
        self._write(f"\r\x1b[K{self._shown}")

    def _line(self, text: str) -> None:
        erase = "\r\x1b[K" if self._shown else ""
        self._shown = ""
        self._write(f"{erase}{text}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            return  # the reader has gone (`slipstream serve | head`), which is no reason to stop serving


def error(text: str) -> None:
    with suppress(OSError):  # the reader has gone (`slipstream serve 2>&1 | head`): the guardian goes on
        print(f"slipstream: {text}", file=sys.stderr, flush=True)


def warning(text: str) -> None:
    error(f"warning: {text}")
