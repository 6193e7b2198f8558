"""How long rendering takes, which decides whether it is done on the event loop or in a thread.

A thread for long texts has a low priority, so that on a busy machine a request waits for its turn there much longer
than the work takes. A conversation with a hundred messages is rendered in a millisecond or two with most templates; but
a template is a program, and some take fifty times as long.
"""

from __future__ import annotations

MAX_INLINE_S = 4e-3  # of CPU time; what other streams may be held up
FIXED_UNITS = 16.0  # of any rendering
CHARS_PER_UNIT = 4096  # which cost about as much as a message
FADE = 0.8  # of the slowest rendering, with each one after it


class InlinePace:
    """Learns from the CPU time of renderings. Sans-IO."""

    def __init__(self) -> None:
        self._unit_s: float | None = None

    def allows(self, num_messages: int, num_chars: int) -> bool:
        """Whether rendering these messages is short enough. Not before the first one is known."""
        return self._unit_s is not None and self._unit_s * units_of(num_messages, num_chars) <= MAX_INLINE_S

    def note(self, num_messages: int, num_chars: int, cpu_s: float) -> None:
        unit_s = cpu_s / units_of(num_messages, num_chars)
        self._unit_s = max(unit_s, (self._unit_s or 0.0) * FADE)


def units_of(num_messages: int, num_chars: int) -> float:
    return FIXED_UNITS + num_messages + num_chars / CHARS_PER_UNIT
