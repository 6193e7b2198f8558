"""The sequences that wait for a slot."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict

from slipstream.router.batching.request_sequence import RequestSequence
from slipstream.router.batching.scheduler import NEVER_S


class SequenceBacklog:
    """Of the tenants that wait, the one that holds the fewest slots is next, with its oldest sequence. With one tenant
    this is the order of arrival."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, OrderedDict[RequestSequence, None]] = {}
        self._num_slots: Counter[str] = Counter()  # held by the sequences of a tenant
        self._expiries: list[tuple[float, int, RequestSequence]] = []  # a heap; some are obsolete

    def __contains__(self, sequence: RequestSequence) -> bool:
        return sequence in self._by_tenant.get(sequence.tenant, ())

    @property
    def next_expiry_s(self) -> float:
        expiries = self._expiries
        while expiries and (expiries[0][2] not in self or expiries[0][2].expires_s != expiries[0][0]):
            heapq.heappop(expiries)
        return expiries[0][0] if expiries else NEVER_S

    def add(self, sequence: RequestSequence) -> None:
        self._by_tenant.setdefault(sequence.tenant, OrderedDict())[sequence] = None

    def add_first(self, sequence: RequestSequence) -> None:
        """Puts a sequence back that has lost its slot before it has begun. It does not expire any more."""
        sequence.expires_s = NEVER_S
        self.add(sequence)
        self._by_tenant[sequence.tenant].move_to_end(sequence, last=False)

    def set_expiry(self, sequence: RequestSequence, expires_s: float) -> None:
        """The earliest one counts."""
        if expires_s < sequence.expires_s:
            sequence.expires_s = expires_s
            heapq.heappush(self._expiries, (expires_s, sequence.number, sequence))

    def discard(self, sequence: RequestSequence) -> None:
        if sequence in self:
            waiting = self._by_tenant[sequence.tenant]
            del waiting[sequence]
            if not waiting:
                del self._by_tenant[sequence.tenant]

    def pop_next(self) -> RequestSequence | None:
        if not self._by_tenant:
            return None
        firsts = [next(iter(waiting)) for waiting in self._by_tenant.values()]
        sequence = min(firsts, key=lambda first: (self._num_slots[first.tenant], first.number))
        self.discard(sequence)
        return sequence

    def pop_expired(self, now: float) -> list[RequestSequence]:
        expired = []
        while self.next_expiry_s <= now:
            sequence = heapq.heappop(self._expiries)[2]
            self.discard(sequence)
            expired.append(sequence)
        return expired

    def slot_taken(self, sequence: RequestSequence) -> None:
        self._num_slots[sequence.tenant] += 1

    def slot_released(self, sequence: RequestSequence) -> None:
        self._num_slots[sequence.tenant] -= 1
        if not self._num_slots[sequence.tenant]:
            del self._num_slots[sequence.tenant]
