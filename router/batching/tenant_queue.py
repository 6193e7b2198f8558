"""Waiting requests, shared fairly between tenants, by rows. Requests of one tenant are served in order of arrival.

This is start-time fair queueing (Goyal, Vin, Cheng 1996), as in the queue of generations: each tenant has a tag, the
rows that it was given so far, and the tenant with the lowest tag is next. A tenant that begins to wait starts at the
virtual time, which is what each waiting tenant would have been given in an even division: it has saved up no turns
while it was absent.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from slipstream.router.batching.scheduler import QueuedRequest

MAX_IDLE_TENANTS = 1024  # whose tags are kept although they have nothing waiting


@dataclass(slots=True, eq=False)
class _Flow:
    """The waiting requests of one tenant."""

    number: int
    tag: float = 0.0
    waiting: OrderedDict[QueuedRequest, None] = field(default_factory=OrderedDict)


class TenantQueue:
    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._active: dict[str, _Flow] = {}  # those with something waiting
        self._num_flows = 0
        self._floor = 0.0  # the tag that was served last
        self._virtual_time = 0.0
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, request: QueuedRequest) -> bool:
        flow = self._active.get(request.request.tenant)
        return flow is not None and request in flow.waiting

    @property
    def num_tenants(self) -> int:
        """That wait."""
        return len(self._active)

    @property
    def num_known_tenants(self) -> int:
        """That wait, or whose tags are kept."""
        return len(self._flows)

    def num_waiting_of(self, tenant: str) -> int:
        flow = self._active.get(tenant)
        return len(flow.waiting) if flow is not None else 0

    def last_of_longest(self) -> QueuedRequest | None:
        """The newest request of the tenant that has most of them."""
        longest = max(self._active.values(), key=lambda flow: len(flow.waiting), default=None)
        return next(reversed(longest.waiting)) if longest is not None else None

    def push(self, request: QueuedRequest) -> None:
        tenant = request.request.tenant
        flow = self._active.get(tenant)
        if flow is None:
            flow = self._begin(tenant, request.batch_size)
        flow.waiting[request] = None
        self._len += 1

    def discard(self, request: QueuedRequest) -> bool:
        """Removes a request that is not served. Returns False if it is not here."""
        flow = self._active.get(request.request.tenant)
        if flow is None or request not in flow.waiting:
            return False
        self._remove(request, flow)
        return True

    def take(self, num_requests: int) -> list[QueuedRequest]:
        """Serves the first ones."""
        if len(self._active) == 1:
            taken = list(islice(self, num_requests))
        else:
            taken = [request for request, _ in zip(self._turns(), range(num_requests), strict=False)]
        for request in taken:
            flow = self._active[request.request.tenant]
            if flow.tag > self._floor:
                self._floor = flow.tag
            self._virtual_time = max(self._virtual_time, self._floor) + request.batch_size / len(self._active)
            flow.tag += request.batch_size
            self._remove(request, flow)
        return taken

    def __iter__(self) -> Iterator[QueuedRequest]:
        """The requests in the order of their turns. The queue must not be changed during the iteration."""
        if len(self._active) == 1:
            return iter(next(iter(self._active.values())).waiting)
        return self._turns()

    def _begin(self, tenant: str, num_rows: int) -> _Flow:
        """A newcomer starts at the virtual time, but at most its own first request behind the one that was served
        last."""
        flow = self._flows.get(tenant)
        if flow is None:
            self._num_flows += 1
            flow = self._flows[tenant] = _Flow(self._num_flows)
        start = min(max(self._virtual_time, self._floor), self._floor + num_rows)
        if start > flow.tag:
            flow.tag = start
        self._active[tenant] = flow
        return flow

    def _remove(self, request: QueuedRequest, flow: _Flow) -> None:
        del flow.waiting[request]
        self._len -= 1
        if not flow.waiting:
            del self._active[request.request.tenant]
            if len(self._flows) > len(self._active) + MAX_IDLE_TENANTS:
                self._forget_idle()

    def _forget_idle(self) -> None:
        """Drops all idle tenants but those that have most to pay back."""
        idle = ((flow.tag, tenant) for tenant, flow in self._flows.items() if not flow.waiting)
        kept = heapq.nlargest(MAX_IDLE_TENANTS // 2, idle)
        self._flows = {tenant: self._flows[tenant] for _, tenant in kept} | self._active

    def _turns(self) -> Iterator[QueuedRequest]:
        heads = [(flow.tag, flow.number, iter(flow.waiting)) for flow in self._active.values()]
        heapq.heapify(heads)
        while heads:
            tag, number, waiting = heads[0]
            request = next(waiting, None)
            if request is None:
                heapq.heappop(heads)
                continue
            yield request
            heapq.heapreplace(heads, (tag + request.batch_size, number, waiting))
