"""A cache within a bound on its bytes: of verdicts on grammars, and of grammars made."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

BYTES_OF_ENTRY = 512  # of the table, and of objects that hold the texts


class BoundedCache(Generic[K, V]):
    """Forgets what was not asked for longest. Each entry counts the bytes of its texts, as `put` is given them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """An entry that is larger than the bound is kept until the next one comes."""
        if key in self._entries:
            self.num_bytes -= self._entries.pop(key)[1]
        size = num_bytes + BYTES_OF_ENTRY
        self._entries[key] = value, size
        self.num_bytes += size
        while self.num_bytes > self._max_bytes and len(self._entries) > 1:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.num_bytes -= dropped
