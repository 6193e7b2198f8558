"""Random bytes for ids and seeds, as good as the system's: asking it costs more than making a request's record, so it
is asked for many at a time."""

from __future__ import annotations

import os

ASKED_BYTES = 4096


class RandomBytes:
    """Random bytes, for one thread. None are given out twice, also not after a fork."""

    def __init__(self) -> None:
        self._bytes = b""
        self._used = 0
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self, count: int) -> bytes:
        end = self._used + count
        if end > len(self._bytes):
            self._bytes, self._used, end = os.urandom(max(ASKED_BYTES, count)), 0, count
        taken = self._bytes[self._used : end]
        self._used = end
        return taken

    def _forget(self) -> None:
        self._bytes, self._used = b"", 0


random_bytes = RandomBytes()
