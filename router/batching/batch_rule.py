"""How much of a queue runs together, decided when an instance is free. The rule is that of Triton's dynamic batcher."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.router.batching.scheduler import NEVER_S, QueuedRequest


class BatchChoice(NamedTuple):
    """The first `num_requests` of the queue run now. 0: none before `wait_until_s`, unless the queue, whose requests
    all have the batch key `key`, comes to `needed_rows` rows, or to one with another key, or its order changes."""

    num_requests: int
    wait_until_s: float = NEVER_S
    needed_rows: int = 0
    key: Hashable = None


@dataclass(frozen=True, slots=True)
class BatchRule:
    """`max_rows` of a batch, the `preferred_rows` at which it need not wait for more, and how long it may wait for
    those. A single request may have more rows than `max_rows`."""

    max_rows: int
    preferred_rows: tuple[int, ...]  # ascending
    delay_s: float = 0.0

    @classmethod
    def of(cls, max_batch_size: int, preferred_batch_sizes: tuple[int, ...], max_queue_delay_us: int) -> BatchRule:
        """Without preferred sizes a full batch is the preferred one. `max_batch_size` 0: one request at a time."""
        default = (max_batch_size,) if max_batch_size else ()
        preferred = tuple(sorted(set(preferred_batch_sizes))) or default
        return cls(max(1, max_batch_size), preferred, max_queue_delay_us / 1e6)

    def choose(self, queue: Iterable[QueuedRequest], now: float) -> BatchChoice:
        """What of `queue`, which is not empty, runs at time `now`."""
        preferred = self.preferred_rows
        largest = preferred[-1] if preferred else 0
        num_requests = num_rows = num_marked = 0
        is_complete = False
        oldest_s, key = NEVER_S, None
        for request in queue:
            rows = num_rows + request.batch_size
            if num_requests:
                if rows > largest and not num_marked:
                    num_marked = num_requests  # no preferred size can be reached any more
                if rows > self.max_rows or request.batch_key != key:
                    is_complete = True
                    break
            else:
                key = request.batch_key
            num_requests += 1
            num_rows = rows
            if request.ready_s < oldest_s:
                oldest_s = request.ready_s
            if rows in preferred:
                num_marked = num_requests
        wait_until_s = oldest_s + self.delay_s
        is_late = self.delay_s > 0 and now >= wait_until_s
        if num_marked and not is_late:
            return BatchChoice(num_marked)
        if is_complete or num_rows >= largest or is_late or self.delay_s == 0:
            return BatchChoice(num_requests)
        return BatchChoice(0, wait_until_s, next(size for size in preferred if size > num_rows), key)
