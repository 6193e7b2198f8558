"""The batches of one instance of a model with sequences, by one of two strategies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from slipstream.router.batching.batch_rule import BatchRule
from slipstream.router.batching.request_sequence import RequestSequence, SequenceSlot
from slipstream.router.batching.scheduler import NEVER_S, QueuedRequest

Place = RequestSequence | None  # None: empty


class InstanceBatches(Protocol):
    """`wait_until_s`: `choose` found requests, but is waiting for more. `frees_at_once`: a slot is free as soon as the
    last request of its sequence runs, rather than when that is over."""

    wait_until_s: float
    frees_at_once: bool
    slots: list[SequenceSlot]

    def ready(self, sequence: RequestSequence, now: float) -> None:
        """The first request of a sequence in one of the slots may run: none of its requests is running."""

    def withdrawn(self, request: QueuedRequest) -> None:
        """A request does not wait any more."""

    def choose(self, now: float) -> Sequence[Place]:
        """The sequences whose first requests run now, by place; (): nothing."""


class DirectBatches:
    """A sequence has the place of its slot. The batch reaches to the highest slot that has a request; places before
    it are empty if their slots have none, or one of another shape than the first."""

    frees_at_once = True

    def __init__(self, slots: list[SequenceSlot], max_delay_s: float, minimum_utilization: float) -> None:
        self.slots = slots
        self.wait_until_s = NEVER_S
        self._max_delay_s = max_delay_s if minimum_utilization > 0 else 0.0
        self._minimum_utilization = minimum_utilization

    def ready(self, sequence: RequestSequence, now: float) -> None:
        """`choose` looks at all slots."""

    def withdrawn(self, request: QueuedRequest) -> None:
        """`choose` looks at all slots."""

    def choose(self, now: float) -> Sequence[Place]:
        self.wait_until_s = NEVER_S
        places = [slot.sequence if slot.sequence is not None and slot.sequence.waiting else None for slot in self.slots]
        ready = [place.waiting[0] for place in places if place is not None]
        if not ready:
            return ()
        if self._max_delay_s and len(ready) / len(self.slots) < self._minimum_utilization:
            wait_until_s = min([request.ready_s for request in ready]) + self._max_delay_s
            if now < wait_until_s:
                self.wait_until_s = wait_until_s
                return ()
        while places[-1] is None:
            places.pop()
        key = ready[0].batch_key
        return [place if place is not None and place.waiting[0].batch_key == key else None for place in places]


class OldestBatches:
    """The first requests of the sequences go through a dynamic batcher. One request of a sequence runs at a time."""

    frees_at_once = False

    def __init__(self, slots: list[SequenceSlot], rule: BatchRule) -> None:
        self.slots = slots
        self.wait_until_s = NEVER_S
        self._rule = rule
        self._heads: OrderedDict[QueuedRequest, RequestSequence] = OrderedDict()

    def ready(self, sequence: RequestSequence, now: float) -> None:
        request = sequence.waiting[0]
        request.ready_s = now
        self._heads[request] = sequence

    def withdrawn(self, request: QueuedRequest) -> None:
        self._heads.pop(request, None)

    def choose(self, now: float) -> Sequence[Place]:
        self.wait_until_s = NEVER_S
        if not self._heads:
            return ()
        choice = self._rule.choose(self._heads, now)
        self.wait_until_s = choice.wait_until_s
        return [self._heads.popitem(last=False)[1] for _ in range(choice.num_requests)]
