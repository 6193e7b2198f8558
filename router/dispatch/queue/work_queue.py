"""The work queue: decides which request is next. Sans-IO; time is an argument.

    class -8 | tenant a: r r r r     most urgent class first, but every second turn goes to the class whose oldest
    class  0 | tenant a: r r         request has waited `ageing_s` for each class that stands before it
             | tenant b: r
    class  1 | tenant c: r r         in a class the tenant that had the fewest tokens for its weight (`fair_queue`)
    background | tenant a: r r r     of a tenant the earliest TTFT deadline

No request of a client starves: once it has waited `ageing_s` for each class ahead of its own, those classes can take
only every second turn from it. Nor does a class that has aged keep out a more urgent one, which still has the other
turns: a crowd of old requests of one tenant delays an urgent request of another by one turn and no more. Background
work, such as a line of a batch, never ages: it goes when no other request waits.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from slipstream.router.dispatch.queue.fair_queue import FairQueue, expected_tokens
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.requests.request_state import RequestState

MAX_PRIORITY = 8  # and -8: values beyond are clamped, which bounds how long any request can be kept waiting
BACKGROUND_CLASS = MAX_PRIORITY + 1
MAX_TTFT_S = 60.0  # later deadlines count as this one; otherwise a request with a late one could be overtaken for ever


def priority_class(request: GenerateRequest) -> int:
    if request.is_background:
        return BACKGROUND_CLASS
    priority = request.priority
    if -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        return priority
    return MAX_PRIORITY if priority > 0 else -MAX_PRIORITY


class WorkQueue:
    """Requests that wait to be placed. Their number is bounded at admission, not here, so that retries always fit.

    Every operation is O(log n). While the cluster has room, each request is pushed, looked at and taken before the next
    one arrives. So a request that comes to an empty queue is kept in `_single`, and put into a fair queue only when
    another one arrives.
    """

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._formed_queues: dict[int, FairQueue] = {}  # by class, without the request in `_single`; no line is empty
        self._single: tuple[RequestState, float] | None = None  # the request and its deadline
        self._waiting: dict[str, RequestState] = {}
        self._aged_had_turn = True  # so that the first turn is the most urgent class's
        self._now = 0.0
        self._version = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __getitem__(self, position: int) -> RequestState:
        """The request at a position of the order as it was at the last time given."""
        return next(itertools.islice(self.candidates(self._now), position, None))

    @property
    def version(self) -> int:
        """A number that changes whenever the waiting requests or their order change."""
        return self._version

    @property
    def depth_by_priority(self) -> dict[int, int]:
        return {priority: len(fair_queue) for priority, fair_queue in sorted(self._fair_queues.items())}

    def oldest_by_priority(self) -> dict[int, float]:
        """When the oldest waiting request of each class arrived."""
        return {priority: fair_queue.oldest_s for priority, fair_queue in sorted(self._fair_queues.items())}

    def num_by_tenant(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for fair_queue in self._fair_queues.values():
            counts += fair_queue.num_by_tenant()
        return counts

    def num_waiting_of(self, tenant: str) -> int:
        return sum(fair_queue.num_waiting_of(tenant) for fair_queue in self._fair_queues.values())

    def num_before(self, tenant: str, own_class: int) -> int:
        """About how many requests would have their turn before a new one of this tenant and class, and rather too few
        than too many: each other tenant counts with as many requests as this one has, but no more than it has
        waiting."""
        num_others = num_own = num_tenants = 0
        for queue_class, fair_queue in self._fair_queues.items():
            if queue_class <= own_class:
                own = fair_queue.num_waiting_of(tenant)
                num_own += own
                num_others += len(fair_queue) - own
                num_tenants += fair_queue.num_tenants - bool(own)
        return num_own + min(num_others, num_tenants * (num_own + 1))

    def push(self, state: RequestState, delay_s: float = 0.0) -> None:
        """Adds a new request, which is treated as if it had arrived `delay_s` later than it did."""
        due_s = state.record.timeline.queued + min(state.levels.ttft_s, MAX_TTFT_S) + delay_s
        is_first = not self._waiting
        self._enter(state)
        if is_first:
            self._single = state, due_s
        else:
            self._fair_queue_for(state).push(state, due_s)

    def push_front(self, state: RequestState) -> None:
        """Adds a request that comes back, ahead of all others of its class."""
        self._enter(state)
        self._fair_queue_for(state).push_front(state)

    def take(self, request_id: str, now: float) -> None:
        """Removes a request whose turn has come, and charges its tenant."""
        state = self._waiting.pop(request_id)
        if self._single is not None:  # does what a line would do
            self._single = None
            state.charged_tokens = expected_tokens(state)
            self._aged_had_turn = True
            self._now = now
            self._version += 1
            return
        own_class = priority_class(state.request)
        aged = self._aged_class(now)
        self._aged_had_turn = aged is None or own_class == aged
        self._now = now
        self._fair_queues[own_class].take(state)
        self._left(own_class)

    def remove(self, request_id: str) -> None:
        """Removes a request that has not had its turn."""
        state = self._waiting.pop(request_id)
        own_class = priority_class(state.request)
        self._fair_queues[own_class].remove(state)
        self._left(own_class)

    def settle(self, state: RequestState, num_tokens: int) -> None:
        """Corrects the charge of a request that has ended and really took `num_tokens`. In a class where no request
        waits any more, debts have been forgotten."""
        if not self._waiting:
            return
        fair_queue = self._fair_queues.get(priority_class(state.request))
        if fair_queue is not None and state.charged_tokens:
            self._version += 1
            fair_queue.settle(state, num_tokens)

    def candidates(self, now: float) -> Iterator[RequestState]:
        """The waiting requests in the order of their turns, each once. They may be taken or removed during the
        iteration, which then follows the new order."""
        seen: set[str] = set()
        while self._waiting:
            version = self._version
            for state in self._walk(now):
                if state.request_id not in seen:
                    seen.add(state.request_id)
                    yield state
                    if self._version != version:
                        break
            else:
                return

    def _walk(self, now: float) -> Iterator[RequestState]:
        self._now = now
        if self._single is not None:
            yield self._single[0]
            return
        aged = self._aged_class(now)
        if len(self._fair_queues) == 1:
            yield from next(iter(self._fair_queues.values()))
            return
        fair_queues = {priority: iter(fair_queue) for priority, fair_queue in sorted(self._fair_queues.items())}
        is_aged_turn = not self._aged_had_turn
        while fair_queues:
            if aged not in fair_queues:
                aged = None
            turn = aged if aged is not None and is_aged_turn else next(iter(fair_queues))
            state = next(fair_queues[turn], None)
            if state is None:
                del fair_queues[turn]
                continue
            is_aged_turn = aged is not None and turn != aged
            yield state

    def _aged_class(self, now: float) -> int | None:
        """The class that gets every second turn, if one has waited long enough for that."""
        if len(self._fair_queues) < 2:
            return None
        oldest = self.oldest_by_priority()
        top = next(iter(oldest))
        del oldest[top]
        oldest.pop(BACKGROUND_CLASS, None)
        if not oldest:
            return None
        aged = min(oldest, key=lambda priority: oldest[priority] + priority * self._ageing_s)
        return aged if now - oldest[aged] >= (aged - top) * self._ageing_s else None

    @property
    def _fair_queues(self) -> dict[int, FairQueue]:
        """The line of each class, after `_single` has been put into its line."""
        if self._single is not None:
            (state, due_s), self._single = self._single, None
            self._fair_queue_for(state).push(state, due_s)
        return self._formed_queues

    def _enter(self, state: RequestState) -> None:
        assert state.request_id not in self._waiting
        self._version += 1
        self._waiting[state.request_id] = state
        self._now = max(self._now, state.record.timeline.queued)

    def _fair_queue_for(self, state: RequestState) -> FairQueue:
        own_class, fair_queues = priority_class(state.request), self._fair_queues
        fair_queue = fair_queues.get(own_class)
        if fair_queue is None:
            fair_queue = fair_queues[own_class] = FairQueue()
        return fair_queue

    def _left(self, own_class: int) -> None:
        self._version += 1
        if not self._fair_queues[own_class]:
            del self._fair_queues[own_class]
