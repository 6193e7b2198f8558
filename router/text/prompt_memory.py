"""What is remembered of prompts, so that the next turn of a conversation costs what is new in it.

    young   what was found or learnt lately
    old     what was young before; what is found here becomes young again

Once the young ones take half of the memory, the old ones are forgotten, and the young ones are old. So whatever is in
use stays, without a list in order of use.
"""

from __future__ import annotations

from collections.abc import Hashable
from sys import getsizeof
from typing import NamedTuple

ENTRY_BYTES = 200  # of an entry, beside its text and its ids
DEFAULT_BYTES = 256 << 20


class Remembered(NamedTuple):
    """The packed ids of a text, and how much memory the entry takes."""

    packed_ids: bytes
    num_bytes: int


class PromptMemory:
    """The ids of texts, for all models of a process, bounded by bytes. A text belongs to an `owner`, which is a
    tokenizer together with the tenant of the prompt: no tenant finds what is another's, or can see by the time that
    another has sent it. Safe to use from several threads: what is lost in a race is learnt once more."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._half_bytes = max_bytes // 2
        self._young: dict[tuple[Hashable, str], Remembered] = {}
        self._old: dict[tuple[Hashable, str], Remembered] = {}
        self._young_bytes = 0

    @property
    def num_bytes(self) -> int:
        """How much it holds at present."""
        return sum(entry.num_bytes for entries in (self._young, self._old) for entry in entries.copy().values())

    def get(self, owner: Hashable, text: str) -> bytes | None:
        key = owner, text
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                return None
            self._keep(key, found)
        return found.packed_ids

    def put(self, owner: Hashable, text: str, packed_ids: bytes) -> None:
        num_bytes = getsizeof(text) + len(packed_ids) + ENTRY_BYTES
        if num_bytes <= self._half_bytes:
            self._keep((owner, text), Remembered(packed_ids, num_bytes))

    def _keep(self, key: tuple[Hashable, str], entry: Remembered) -> None:
        if self._young_bytes + entry.num_bytes > self._half_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        if key not in self._young:
            self._young[key] = entry
            self._young_bytes += entry.num_bytes
