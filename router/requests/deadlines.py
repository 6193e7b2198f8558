"""Two collections of deadlines: one where all have the same length, and one where each has its own."""

from __future__ import annotations

from collections import OrderedDict

from slipstream.router.requests.ranked_heap import RankedHeap


class DeadlineRing:
    """Ids whose deadline is `timeout_s` after they were set. As time never goes back, insertion order is deadline
    order, so setting, dropping and reading the first are O(1). A dropped id leaves nothing behind (in a plain dict,
    finding the first entry means skipping all those that were deleted before it)."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._due: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._due

    @property
    def first(self) -> float | None:
        """The earliest deadline."""
        return next(iter(self._due.values())) if self._due else None  # called after every message

    def set(self, request_id: str, now: float) -> None:
        self._due.pop(request_id, None)
        self._due[request_id] = now + self.timeout_s

    def drop(self, request_id: str) -> None:
        self._due.pop(request_id, None)

    def pop_due(self, now: float) -> list[str]:
        """Removes and returns the ids whose deadline has come."""
        due = []
        for request_id, deadline in self._due.items():
            if deadline > now:
                break
            due.append(request_id)
        for request_id in due:
            del self._due[request_id]
        return due


class Deadlines:
    """Ids that each have a deadline of their own. Operations are O(log n)."""

    def __init__(self) -> None:
        self._heap: RankedHeap[str] = RankedHeap()
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._due

    @property
    def first(self) -> float | None:
        """The earliest deadline."""
        return self._due[self._heap.first()] if self._due else None

    def set(self, request_id: str, due: float) -> None:
        self._due[request_id] = due
        self._heap.push(due, request_id)

    def drop(self, request_id: str) -> None:
        if self._due.pop(request_id, None) is not None:
            self._heap.discard(request_id)

    def pop_due(self, now: float) -> list[str]:
        """Removes and returns the ids whose deadline has come, the earliest first."""
        due = []
        while self._due and self._due[self._heap.first()] <= now:
            request_id = self._heap.first()
            self.drop(request_id)
            due.append(request_id)
        return due
