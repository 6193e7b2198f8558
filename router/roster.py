"""The workers that are connected, and what each of them is busy with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.credits import CreditLedger
from slipstream.router.messages import Hello, Role, Stats
from slipstream.router.placement.load import WorkerLoad
from slipstream.router.placement.load_order import LoadOrder
from slipstream.router.placement.service_times import ServiceTimes


@dataclass(slots=True, eq=False)
class WorkerState:
    """One connected worker group. `request_ids` are the requests that have something on it or promised to it."""

    hello: Hello
    joined_s: float
    ledger: CreditLedger = field(default_factory=CreditLedger)
    request_ids: set[str] = field(default_factory=set)
    draining: bool = False
    stats: Stats | None = None
    load: WorkerLoad = field(default_factory=WorkerLoad)
    times: ServiceTimes = field(default_factory=ServiceTimes)

    @property
    def peer(self) -> PeerId:
        return self.hello.worker

    @property
    def name(self) -> str:
        return self.hello.worker.name

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.hello.page_tokens)


FEW = 8


def _decode_load(worker: WorkerState) -> float:
    """The larger share in use of slots and pages."""
    hello, ledger = worker.hello, worker.ledger
    return -min(ledger.free_slots / hello.max_slots, ledger.free_pages / hello.num_pages)


def _prefill_load(worker: WorkerState) -> float:
    """The share of the queue that is taken; without pages nothing of it is free."""
    ledger = worker.ledger
    return -ledger.free_tokens / worker.hello.max_queued_tokens if ledger.free_pages > 0 else 1.0


class Roster:
    """Workers by identity, by role those that may get new work, and those in the order of their load. `pools` are the
    service times of all workers of a role."""

    def __init__(self) -> None:
        self._workers: dict[PeerId, WorkerState] = {}
        self._open: dict[Role, list[WorkerState]] = {"prefill": [], "decode": []}
        self._by_load: dict[Role, LoadOrder[WorkerState]] = {
            "prefill": LoadOrder(_prefill_load),
            "decode": LoadOrder(_decode_load),
        }
        self.pools: dict[Role, ServiceTimes] = {"prefill": ServiceTimes(), "decode": ServiceTimes()}
        self.max_model_len: int | None = None  # the longest sequence that a decode worker takes; every request asks

    def __iter__(self) -> Iterator[WorkerState]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, peer: PeerId) -> WorkerState | None:
        return self._workers.get(peer)

    @property
    def prefill_groups(self) -> list[WorkerState]:
        """Prefill groups that are not draining."""
        return self._open["prefill"]

    @property
    def decode_workers(self) -> list[WorkerState]:
        """Decode workers that are not draining."""
        return self._open["decode"]

    def add(self, worker: WorkerState) -> None:
        assert worker.peer not in self._workers
        self._workers[worker.peer] = worker
        role = worker.hello.role
        worker.times = ServiceTimes(self.pools[role], self.pools["prefill" if role == "decode" else "decode"])
        order = self._by_load[role]
        order.add(worker)
        worker.ledger.on_change = partial(order.changed.add, worker)
        self._refresh()

    def remove(self, worker: WorkerState) -> None:
        del self._workers[worker.peer]
        self._close(worker)

    def drain(self, worker: WorkerState) -> None:
        worker.draining = True
        self._close(worker)

    def least_loaded(self, role: Role, limit: int) -> list[WorkerState]:
        """At most `limit` of the workers that take new work, those with most room if there are more."""
        workers = self._open[role]
        return workers if len(workers) <= limit else list(islice(self._by_load[role], limit))

    @property
    def has_decode_room(self) -> bool:
        """A decode worker that takes new work has a slot and a page. Asked with every event, so of many workers only
        the least loaded are looked at; of few, all, which is cheaper than to keep them in order."""
        return any(w.ledger.free_slots > 0 and w.ledger.free_pages > 0 for w in self.least_loaded("decode", FEW))

    def _close(self, worker: WorkerState) -> None:
        worker.ledger.on_change = None
        self._by_load[worker.hello.role].discard(worker)
        self._refresh()

    def _refresh(self) -> None:
        for role in self._open:
            self._open[role] = [w for w in self._workers.values() if w.hello.role == role and not w.draining]
        self.max_model_len = max((worker.hello.max_model_len for worker in self.decode_workers), default=None)
