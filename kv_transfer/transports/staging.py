"""The buffers that messages pass through on their way between scattered pages and the wire."""

from __future__ import annotations

import mmap

import numpy as np

from slipstream.kv_transfer.api.transport import Buffer, MessageArrival, Transport


class StagingError(ValueError):
    """The staging memory is too small for the messages."""


class Staging:
    """Slots of equal size in one allocation, which is made when the first slot is taken, so a worker that never sends
    does not pay for it. The slot that was given back last is handed out first: a few slots stay in the processor's
    cache, and the rest are only used in a burst.

    Raises StagingError if there is not room for two slots.
    """

    def __init__(self, slot_bytes: int, total_bytes: int) -> None:
        self._slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.num_slots = total_bytes // self._slot_bytes
        if self.num_slots < 2:
            raise StagingError(
                f"{total_bytes} bytes of staging a direction hold {self.num_slots} messages of {slot_bytes} bytes, "
                f"at least 2 are needed: raise staging_mib or lower slab_pages"
            )
        self._memory: Buffer | None = None
        self._free = list(reversed(range(self.num_slots)))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> tuple[int, Buffer] | None:
        """A slot and its memory, or None if all are in use."""
        if not self._free:
            return None
        if self._memory is None:
            self._memory = np.empty(self.num_slots * self._slot_bytes, np.uint8)
        slot = self._free.pop()
        return slot, self._memory[slot * self._slot_bytes : (slot + 1) * self._slot_bytes]

    def give_back(self, slot: int) -> None:
        assert len(self._free) < self.num_slots
        self._free.append(slot)


def receive_into_scrap(transport: Transport, arrival: MessageArrival) -> None:
    """Takes a message that nothing expects any more."""
    transport.receive(arrival, np.empty(arrival.num_bytes, np.uint8), _forget)


def _forget(error: str | None) -> None:
    """Called when an unwanted message is gone, whether it was intact or not."""
