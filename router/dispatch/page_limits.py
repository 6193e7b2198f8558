"""Limits on the pages of workers, so that all workers of a host keep within its memory: what each needs, and the loop
that has it divided."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Protocol

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.page_budget.page_budget import PageBudget
from slipstream.router.page_budget.page_ledger import BudgetedWorker
from slipstream.router.protocol.messages import PageLimit
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState

log = logging.getLogger(__name__)

INTERVAL_S = 0.1  # between looks, while there are workers to look at
LOOK_SHARE = 0.05  # of the event loop's time; with very many workers, looks become rarer
MAX_LOOKED_AT = 256  # of the waiting requests


def budgeted_workers(registry: WorkerRegistry, table: RequestTable, weight: float = 1.0) -> list[BudgetedWorker]:
    """The workers that obey a limit, with what they need. `weight` is that of their model."""
    budgeted = [worker for worker in registry if worker.hello.page_limit is not None]
    asked = _asked_pages(budgeted, table) if budgeted and table.queue.waiting else {}
    return [_budgeted(worker, asked.get(worker.peer, 0), weight) for worker in budgeted]


def _budgeted(worker: WorkerState, num_asked: int, weight: float) -> BudgetedWorker:
    hello, layout = worker.hello, worker.hello.layout
    assert hello.page_limit is not None
    return BudgetedWorker(
        worker.peer,
        tuple(address.host for address in hello.addresses) or (worker.name,),
        max(layout.num_layers * layout.num_kv_heads * layout.head_bytes, 1),
        hello.num_pages,
        worker.pages_for(hello.max_model_len),
        hello.page_limit,
        worker.pages,
        num_asked,
        weight,
    )


def _asked_pages(workers: Collection[WorkerState], table: RequestTable) -> dict[PeerId, int]:
    """How many pages the waiting requests want of each worker, if each goes where most room would be: prompts to
    prefill workers, sequences to decode workers with a free slot."""
    asked: dict[PeerId, int] = {}
    slots = {worker.peer: worker.ledger.free_slots for worker in workers}
    pools: dict[str, list[tuple[WorkerState, ...]]] = {}
    for request_id in islice(table.queue.waiting, MAX_LOOKED_AT):
        state = table[request_id]
        if state.version not in pools:
            pools[state.version] = list(_pools(workers, state.version))
        for pool in pools[state.version]:
            free = [worker for worker in pool if slots[worker.peer] > 0 or worker.hello.role == "prefill"]
            best = max(free, key=lambda w: w.hello.num_pages - _num_used(w) - asked.get(w.peer, 0), default=None)
            if best is not None:
                num_pages = best.decode_pages(state.num_tokens, state.most_tokens)
                asked[best.peer] = asked.get(best.peer, 0) + num_pages
                slots[best.peer] -= 1
    return asked


def _pools(workers: Collection[WorkerState], version: str) -> Iterator[tuple[WorkerState, ...]]:
    """The workers of each role of a version that take new work."""
    for role in ("decode", "prefill"):
        yield tuple(w for w in workers if w.hello.role == role and w.version == version and not w.draining)


def _num_used(worker: WorkerState) -> int:
    return worker.pages.num_used if worker.pages is not None else 0


class BudgetedPort(Protocol):
    """The service to which the workers are connected."""

    def budgeted_workers(self) -> list[BudgetedWorker]: ...

    def limit_pages(self, peer: PeerId, limit: PageLimit) -> None: ...

    async def wait_for_join(self) -> None:
        """Returns when the next worker has joined."""


class PageLimits:
    """Divides `budget_bytes` of each host among the workers of all `ports`. None: each gets its whole pool."""

    def __init__(self, budget_bytes: float | None, ports: Sequence[BudgetedPort]) -> None:
        self.budget = PageBudget(math.inf if budget_bytes is None else budget_bytes)
        self._ports = ports

    async def run(self) -> None:
        """Until cancelled. Without workers that obey a limit it only waits for one."""
        while True:
            began_s = time.monotonic()
            try:
                has_workers = self.look()
            except Exception:  # the limits stay as they are, and the cluster serves on
                log.exception("the memory of hosts could not be divided")
                has_workers = True
            if has_workers:
                await asyncio.sleep(max(INTERVAL_S, (time.monotonic() - began_s) / LOOK_SHARE))
            else:
                await self._next_join()

    def look(self) -> bool:
        """Looks at all workers, and sends the limits that follow. Returns whether there are any."""
        workers: dict[PeerId, BudgetedWorker] = {}
        port_of: dict[PeerId, BudgetedPort] = {}
        for port in self._ports:
            for worker in port.budgeted_workers():
                workers[worker.peer], port_of[worker.peer] = worker, port
        for peer, limit in self.budget.look(workers.values(), time.monotonic()):
            port_of[peer].limit_pages(peer, limit)
        return bool(workers)

    async def _next_join(self) -> None:
        waits = [asyncio.ensure_future(port.wait_for_join()) for port in self._ports]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
