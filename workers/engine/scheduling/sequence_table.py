"""The sequences of a worker by where they stand: in the queue, in the batch, or with a slot beside the batch."""

from __future__ import annotations

from bisect import bisect_left, insort

from slipstream.workers.engine.scheduling.sequence import RESERVED_STATES, Sequence, SequenceState
from slipstream.workers.interface.engine import AttemptKey


class SequenceTable:
    """`waiting` and `running` are sorted by priority and arrival. `num_reserved` sequences have a slot without being in
    the batch.

    Its state says where a sequence stands. So to move one is to take it out, to change its state, and to put it back.
    """

    def __init__(self) -> None:
        self.by_key: dict[AttemptKey, Sequence] = {}
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_reserved = 0

    @property
    def num_taken_slots(self) -> int:
        return len(self.running) + self.num_reserved

    def add(self, sequence: Sequence) -> None:
        """A new sequence. Its key must be new as well."""
        assert sequence.key not in self.by_key
        self.by_key[sequence.key] = sequence
        self.put(sequence)

    def put(self, sequence: Sequence) -> None:
        """Puts a sequence where its state says. One that is held or draining stands nowhere."""
        if sequence.state is SequenceState.WAITING:
            insort(self.waiting, sequence, key=_order)
        elif sequence.state is SequenceState.RUNNING:
            insort(self.running, sequence, key=_order)
        elif sequence.state in RESERVED_STATES:
            self.num_reserved += 1

    def take_out(self, sequence: Sequence) -> None:
        """Takes a sequence from where its state says. To be called before the state changes."""
        if sequence.state is SequenceState.WAITING:
            _remove(self.waiting, sequence)
        elif sequence.state is SequenceState.RUNNING:
            _remove(self.running, sequence)
        elif sequence.state in RESERVED_STATES:
            self.num_reserved -= 1

    def end(self, sequence: Sequence) -> None:
        """A sequence that was taken out has come to its end."""
        sequence.move(SequenceState.FINISHED)
        del self.by_key[sequence.key]

    def check_integrity(self) -> None:
        """Raises AssertionError if a sequence does not stand where its state says."""
        by_state = {state: [one for one in self.by_key.values() if one.state is state] for state in SequenceState}
        assert self.running == sorted(by_state[SequenceState.RUNNING], key=_order)
        assert self.waiting == sorted(by_state[SequenceState.WAITING], key=_order)
        assert self.num_reserved == sum(len(by_state[state]) for state in RESERVED_STATES)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _remove(ordered: list[Sequence], sequence: Sequence) -> None:
    at = bisect_left(ordered, sequence.order, key=_order)
    assert ordered[at] is sequence
    del ordered[at]
