"""The buffers that messages pass through on their way between scattered pages and the wire."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from slipstream.kv_transfer.api.transport import Buffer, MessageArrival, Transport


class StagingError(ValueError):
    """The staging memory is too small for the messages."""


class Sliceable(Protocol):
    def __getitem__(self, part: slice, /) -> Self: ...


Memory = TypeVar("Memory", bound=Sliceable)


class Staging(Generic[Memory]):
    """Slots of equal size in one allocation by `allocate(num_bytes)`. It is made when the first slot is taken, so a
    worker that never sends does not pay for it. The slot that was given back last is handed out first: a few slots stay
    in the processor's cache, and the rest are only used in a burst.

    Raises StagingError if there is not room for two slots.
    """

    def __init__(self, slot_bytes: int, total_bytes: int, allocate: Callable[[int], Memory]) -> None:
        self._slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.num_slots = total_bytes // self._slot_bytes
        if self.num_slots < 2:
            raise StagingError(
                f"{total_bytes} bytes of staging a direction hold {self.num_slots} messages of {slot_bytes} bytes, "
                f"at least 2 are needed: raise staging_mib or lower slab_pages"
            )
        self._allocate = allocate
        self._memory: Memory | None = None
        self._free = list(reversed(range(self.num_slots)))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, num_bytes: int) -> tuple[int, Memory]:
        """A free slot, of which there must be one, and the first bytes of its memory."""
        assert num_bytes <= self._slot_bytes
        if self._memory is None:
            self._memory = self._allocate(self.num_slots * self._slot_bytes)
        slot = self._free.pop()
        first = slot * self._slot_bytes
        return slot, self._memory[first : first + num_bytes]

    def give_back(self, slot: int) -> None:
        assert len(self._free) < self.num_slots
        self._free.append(slot)


def host_memory(num_bytes: int) -> Buffer:
    return np.empty(num_bytes, np.uint8)


def receive_into_scrap(transport: Transport, arrival: MessageArrival) -> None:
    """Takes a message that nothing expects any more."""
    transport.receive(arrival, np.empty(arrival.num_bytes, np.uint8), _forget)


def _forget(error: str | None) -> None:
    """Called when an unwanted message is gone, whether it was intact or not."""
