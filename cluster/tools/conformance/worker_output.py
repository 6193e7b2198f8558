"""What the worker under test prints, in a file, so that it does not hide the results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

MAX_SHOWN_BYTES = 64 << 10
MAX_LINES = 20


class WorkerOutput:
    """`file` is one that can be read and written; the worker inherits it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._num_seen_bytes = 0

    def news(self) -> Sequence[str]:
        """The last lines since the call before. The position in the file, which is the worker's as well, stays."""
        descriptor = self.file.fileno()
        num_bytes = os.fstat(descriptor).st_size
        start = max(self._num_seen_bytes, num_bytes - MAX_SHOWN_BYTES)
        text = os.pread(descriptor, num_bytes - start, start).decode("utf-8", "replace")
        self._num_seen_bytes = num_bytes
        return text.splitlines()[-MAX_LINES:]
