"""The queue of one priority class: tenants share it by tokens, and each tenant's requests are ordered by deadline.

This is start-time fair queueing (Goyal, Vin, Cheng 1996). Every tenant has a tag: the tokens that it was given so far,
divided by its weight. The tenant with the lowest tag is next. So between two tenants that keep waiting, tokens per
weight differ by no more than one request of each.

A tenant that begins to wait starts at the virtual time, which is what each waiting tenant would have been given if all
tokens had been divided evenly among them. So a tenant neither saves up turns while it is absent, nor owes any when it
returns. And because virtual time advances with every token of any tenant, an endless series of newcomers cannot keep
out a tenant that was served before them. (Starting newcomers at the tag that was served last, as the paper does, would
allow that: newcomers served at that tag leave it where it is.) Virtual time is computed from charges that are corrected
later, so it is bounded: a newcomer never starts before the tag served last, and at most the cost of its own first
request behind it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.router.requests.ranked_heap import RankedHeap
from slipstream.router.requests.request_state import RequestState

MAX_AWAY = 1024  # how many tags of tenants that are not waiting are kept, beyond the number of those that are


def expected_tokens(state: RequestState) -> int:
    """How many tokens a request will probably cost, as charged before it runs. The error is settled at its end."""
    return state.num_prompt_tokens + round(state.forecast.mean)


@dataclass(slots=True, eq=False)
class _Flow:
    """The waiting requests of one tenant."""

    tenant: str
    weight: float
    tag: float
    waiting: RankedHeap[RequestState] = field(default_factory=RankedHeap)


class FairQueue:
    """The waiting requests of a class. Those that come back after a failed attempt stand before all others, and have
    been charged already."""

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._by_tag: RankedHeap[_Flow] = RankedHeap()
        self._away: dict[str, float] = {}  # tags of tenants with nothing waiting
        self._floor = 0.0  # the tag that was served last
        self._virtual_time = 0.0
        self._weight = 0.0  # the sum over waiting tenants
        self._returned: RankedHeap[RequestState] = RankedHeap()
        self._arrivals: dict[RequestState, None] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def oldest_s(self) -> float:
        """When the request arrived that has waited longest."""
        return next(iter(self._arrivals)).record.timeline.queued

    @property
    def num_tenants(self) -> int:
        return len(self._flows)

    def num_waiting_of(self, tenant: str) -> int:
        flow = self._flows.get(tenant)
        return len(flow.waiting) if flow is not None else 0

    def num_by_tenant(self) -> Counter[str]:
        counts = Counter({tenant: len(flow.waiting) for tenant, flow in self._flows.items()})
        counts.update(state.request.tenant for state in self._returned)
        return counts

    def push(self, state: RequestState, due_s: float) -> None:
        """Adds a request; `due_s` is its deadline, which orders the requests of a tenant."""
        tenant, weight = state.request.tenant, state.request.weight
        flow = self._flows.get(tenant)
        if flow is None:
            start = min(max(self._virtual_time, self._floor), self._floor + expected_tokens(state) / weight)
            flow = self._flows[tenant] = _Flow(tenant, 0.0, max(self._away.pop(tenant, 0.0), start))
            self._by_tag.push(flow.tag, flow)
        self._weight += weight - flow.weight
        flow.weight = weight
        flow.waiting.push(due_s, state)
        self._arrivals[state] = None

    def push_front(self, state: RequestState) -> None:
        """Adds a request that comes back. Among those, the one that arrived first is first."""
        self._returned.push(state.record.timeline.queued, state)
        self._arrivals[state] = None

    def take(self, state: RequestState) -> None:
        """Removes a request whose turn has come, and charges its tenant."""
        if state not in self._returned:
            flow = self._flows[state.request.tenant]
            self._floor = max(self._floor, flow.tag)
            state.charged_tokens = expected_tokens(state)
            self._virtual_time = max(self._virtual_time, self._floor) + state.charged_tokens / self._weight
            if len(flow.waiting) > 1:
                self._move(flow, state.charged_tokens)
            else:
                flow.tag += state.charged_tokens / flow.weight
        self.remove(state)

    def remove(self, state: RequestState) -> None:
        """Removes a request that has not had its turn. If the line is empty afterwards, it must not be used again."""
        del self._arrivals[state]
        if state in self._returned:
            self._returned.discard(state)
        else:
            flow = self._flows[state.request.tenant]
            flow.waiting.discard(state)
            if not flow.waiting:
                del self._flows[flow.tenant]
                self._weight -= flow.weight
                self._by_tag.discard(flow)
                self._away[flow.tenant] = flow.tag
        if len(self._away) > len(self._flows) + MAX_AWAY:
            self._forget_away()

    def settle(self, state: RequestState, num_tokens: int) -> None:
        """Corrects the charge of a request that has ended and took `num_tokens` in all."""
        num_missing, state.charged_tokens = num_tokens - state.charged_tokens, num_tokens
        if self._flows:
            self._virtual_time += num_missing / self._weight
        tenant = state.request.tenant
        if tenant in self._flows:
            self._move(self._flows[tenant], num_missing)
        elif tenant in self._away:
            self._away[tenant] += num_missing / state.request.weight

    def _forget_away(self) -> None:
        """Drops the tags of absent tenants that would start at the floor anyway, and then those with the least to pay
        back. Half of the places are free afterwards, so that clients who use a new name for every request do not cause
        this work for every request."""
        behind = [(tag, tenant) for tenant, tag in self._away.items() if tag > self._floor]
        self._away = {tenant: tag for tag, tenant in heapq.nlargest(MAX_AWAY // 2, behind)}

    def _move(self, flow: _Flow, num_tokens: int) -> None:
        flow.tag = max(flow.tag + num_tokens / flow.weight, 0.0)
        self._by_tag.push(flow.tag, flow)

    def __iter__(self) -> Iterator[RequestState]:
        """The requests in the order of their turns. The line must not be changed during the iteration."""
        yield from self._returned
        if len(self._flows) == 1:
            yield from self._by_tag.first().waiting
            return
        newcomers = iter(self._by_tag)
        following = next(newcomers, None)
        again: list[tuple[float, int, _Flow, Iterator[RequestState]]] = []
        for number in itertools.count():
            if following is not None and (not again or following.tag <= again[0][0]):
                flow, tag, waiting = following, following.tag, iter(following.waiting)
                following = next(newcomers, None)
            elif again:
                tag, _, flow, waiting = heapq.heappop(again)
            else:
                return
            state = next(waiting, None)
            if state is not None:
                yield state
                heapq.heappush(again, (tag + expected_tokens(state) / flow.weight, number, flow, waiting))
