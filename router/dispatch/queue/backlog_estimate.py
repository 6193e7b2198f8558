"""How long a queue will take, from the answers that run and wait, until its speed has been measured.

It is an optimistic estimate, because it is worse to refuse a request that would have been served than to let one time
out: every answer is taken to be as short as one in ten is (`OutputForecast.low`; those that ignore the end of text are
known exactly), the shortest to come first, and every step to decode a single sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.request_state import RequestState

MAX_LOOKED_AT = 256  # of the running and of the waiting: where there are more, the pace is soon known


class BacklogEstimate(NamedTuple):
    """The requests that wait, the workers that they wait for, and how to find a request by its id."""

    waiting: Collection[str]
    decode_workers: Sequence[WorkerState]
    find: Callable[[str], RequestState | None]

    def seconds(self, num_before: int) -> float:
        """Until a slot is free for a request that has `num_before` of those that wait ahead of it. 0 where slots are
        not what the queue waits for, nothing is known of the workers' speed, or there are too many to look at."""
        if len(self.waiting) > MAX_LOOKED_AT:
            return 0.0
        free_at: list[int] = []  # in tokens
        step_s = math.inf
        for worker in self.decode_workers:
            num_unused = worker.hello.max_slots - len(worker.request_ids)
            if num_unused > 0 or not worker.times.num_samples("decode"):
                return 0.0
            base_s, by_seq_s, _ = worker.times.coefficients("decode")
            step_s = min(step_s, base_s + by_seq_s)
            free_at += self._least_tokens(worker.request_ids)
            if len(free_at) > MAX_LOOKED_AT:
                return 0.0
        if not free_at:
            return 0.0
        heapify(free_at)
        for num_tokens in sorted(self._least_tokens(self.waiting))[:num_before]:
            heapreplace(free_at, free_at[0] + num_tokens)
        return free_at[0] * step_s

    def _least_tokens(self, request_ids: Iterable[str]) -> list[int]:
        """What each of them will still generate at least."""
        states = filter(None, map(self.find, request_ids))
        return [max(state.forecast.low - len(state.output), 0) for state in states]
