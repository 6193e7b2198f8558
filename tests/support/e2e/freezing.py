"""Processes that are there and do nothing: as in a swap storm, or behind a broken cable."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """What they were given before or are given now stays undone until the end; they may be killed meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
