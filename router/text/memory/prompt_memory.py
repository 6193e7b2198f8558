"""What is remembered of prompts, so that the next turn of a conversation costs what is new in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any, NamedTuple

ENTRY_BYTES = 200  # of an entry, beside what it holds
DEFAULT_BYTES = 256 << 20


class Remembered(NamedTuple):
    value: Any
    num_bytes: int


class PromptMemory:
    """For all models of a process, bounded by bytes; what was not used for longest is forgotten first. Keys begin with
    what an entry belongs to: a tokenizer, and the tenant of the prompt. No tenant finds what is another's, or sees by
    the time that another has sent it. Safe to use from several threads."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, Remembered] = OrderedDict()  # the latest used last
        self._lock = Lock()
        self.num_bytes = 0  # that it holds at present

    @property
    def is_on(self) -> bool:
        return self._max_bytes > 0

    def get(self, key: Hashable) -> Any:
        """None if it is not there."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found.value

    def put(self, key: Hashable, value: Any, num_bytes: int) -> None:
        """Nothing is kept that takes more than half of the memory."""
        num_bytes += ENTRY_BYTES
        if num_bytes > self._max_bytes // 2:
            return
        with self._lock:
            self._drop(key)
            self._entries[key] = Remembered(value, num_bytes)
            self.num_bytes += num_bytes
            while self.num_bytes > self._max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self.num_bytes -= oldest.num_bytes

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self.num_bytes -= found.num_bytes
