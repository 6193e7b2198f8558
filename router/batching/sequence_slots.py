"""Which sequence has which slot of which instance."""

from __future__ import annotations

import heapq
from itertools import count

from slipstream.router.batching.request_sequence import RequestSequence, SequenceSlot
from slipstream.router.batching.sequence_backlog import SequenceBacklog


class SequenceSlots:
    """Of the free slots the one with the lowest index is next, so instances fill evenly and batches stay short. Of
    those with one index, the one of the instance that was added first."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots  # of an instance
        self._slots: dict[str, list[SequenceSlot]] = {}
        self._free: list[tuple[int, int, SequenceSlot]] = []  # a heap
        self._retired: set[str] = set()  # instances whose slots are not given to others any more
        self._order: dict[str, int] = {}  # of instances
        self._numbers = count()
        self.backlog = SequenceBacklog()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def add_instance(self, instance: str) -> list[SequenceSlot]:
        slots = [SequenceSlot(instance, index) for index in range(self._num_slots)]
        self._slots[instance] = slots
        self._order[instance] = next(self._numbers)
        for slot in slots:
            self._set_free(slot)
        return slots

    def remove_instance(self, instance: str) -> list[RequestSequence]:
        """Returns the sequences that had its slots."""
        slots = self._slots.pop(instance)
        del self._order[instance]
        self._take_free(instance)
        self._retired.discard(instance)
        lost = [slot.sequence for slot in slots if slot.sequence is not None]
        for sequence in lost:
            self._leave(sequence)
        return lost

    def retire_instance(self, instance: str) -> None:
        """Its sequences keep their slots to their ends."""
        self._retired.add(instance)
        self._take_free(instance)

    def has_sequences(self, instance: str) -> bool:
        return any(slot.sequence is not None for slot in self._slots.get(instance, ()))

    def place(self, sequence: RequestSequence) -> None:
        """Gives it a free slot, or puts it into the backlog."""
        if self._free:
            self._enter(sequence, heapq.heappop(self._free)[2])
        else:
            self.backlog.add(sequence)

    def fill(self) -> list[RequestSequence]:
        """Gives the free slots to sequences of the backlog. Returns these."""
        placed = []
        while self._free:
            sequence = self.backlog.pop_next()
            if sequence is None:
                break
            self._enter(sequence, heapq.heappop(self._free)[2])
            placed.append(sequence)
        return placed

    def release(self, sequence: RequestSequence) -> None:
        """The sequence is over. If it was in the backlog it leaves that."""
        slot = sequence.slot
        if slot is None:
            self.backlog.discard(sequence)
        else:
            self._leave(sequence)
            if slot.instance not in self._retired:
                self._set_free(slot)

    def _take_free(self, instance: str) -> None:
        self._free = [each for each in self._free if each[2].instance != instance]
        heapq.heapify(self._free)

    def _enter(self, sequence: RequestSequence, slot: SequenceSlot) -> None:
        sequence.slot, slot.sequence = slot, sequence
        self.backlog.slot_taken(sequence)

    def _leave(self, sequence: RequestSequence) -> None:
        assert sequence.slot is not None
        sequence.slot.sequence = None
        sequence.slot = None
        self.backlog.slot_released(sequence)

    def _set_free(self, slot: SequenceSlot) -> None:
        heapq.heappush(self._free, (slot.index, self._order[slot.instance], slot))
