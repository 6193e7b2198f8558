"""Waiting, in tests, for something that a transfer agent's thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

EVENT_S = 20.0  # how long an event may take on a busy machine


def wait_until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds. Raises AssertionError if it does not within `EVENT_S`."""
    deadline_s = time.monotonic() + EVENT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {EVENT_S:g} s"
        time.sleep(0.005)
