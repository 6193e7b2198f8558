"""What is remembered of prompts, so that the next turn of a conversation costs what is new in it.

    young   what was found or learnt lately
    old     what was young before; what is found here becomes young again

Once the young ones take half of the memory, the old ones are forgotten, and the young ones are old. So whatever is in
use stays, without a list in order of use.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

ENTRY_BYTES = 200  # of an entry, beside what it holds
DEFAULT_BYTES = 256 << 20


class Remembered(NamedTuple):
    value: Any
    num_bytes: int


class PromptMemory:
    """For all models of a process, bounded by bytes. Keys begin with what an entry belongs to: a tokenizer, and the
    tenant of the prompt. No tenant finds what is another's, or can see by the time that another has sent it. Safe to
    use from several threads: what is lost in a race is learnt once more."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._half_bytes = max_bytes // 2
        self._young: dict[Hashable, Remembered] = {}
        self._old: dict[Hashable, Remembered] = {}
        self._young_bytes = 0

    @property
    def is_on(self) -> bool:
        return self._half_bytes > 0

    @property
    def num_bytes(self) -> int:
        """How much it holds at present."""
        return sum(entry.num_bytes for entries in (self._young, self._old) for entry in entries.copy().values())

    def get(self, key: Hashable) -> Any:
        """None if it is not there."""
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                return None
            self._keep(key, found)
        return found.value

    def put(self, key: Hashable, value: Any, num_bytes: int) -> None:
        """Nothing is kept that takes more than half of the memory."""
        num_bytes += ENTRY_BYTES
        if num_bytes <= self._half_bytes:
            self.drop(key)
            self._keep(key, Remembered(value, num_bytes))

    def drop(self, key: Hashable) -> None:
        found = self._young.pop(key, None)
        if found is not None:
            self._young_bytes -= found.num_bytes
        self._old.pop(key, None)

    def _keep(self, key: Hashable, entry: Remembered) -> None:
        if self._young_bytes + entry.num_bytes > self._half_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._young[key] = entry
        self._young_bytes += entry.num_bytes
