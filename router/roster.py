"""The workers that are connected, and what each of them is busy with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.credits import CreditLedger
from slipstream.router.messages import Hello, Role, Stats


@dataclass(slots=True, eq=False)
class WorkerState:
    """One connected worker group. `request_ids` are the requests that have something on it or promised to it."""

    hello: Hello
    joined_s: float
    ledger: CreditLedger = field(default_factory=CreditLedger)
    request_ids: set[str] = field(default_factory=set)
    draining: bool = False
    stats: Stats | None = None

    @property
    def peer(self) -> PeerId:
        return self.hello.worker

    @property
    def name(self) -> str:
        return self.hello.worker.name

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.hello.page_tokens)


class Roster:
    """Workers by identity, and by role those that may get new work."""

    def __init__(self) -> None:
        self._workers: dict[PeerId, WorkerState] = {}
        self._open: dict[Role, list[WorkerState]] = {"prefill": [], "decode": []}

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
        self._refresh()

    def remove(self, worker: WorkerState) -> None:
        del self._workers[worker.peer]
        self._refresh()

    def drain(self, worker: WorkerState) -> None:
        worker.draining = True
        self._refresh()

    def _refresh(self) -> None:
        for role in self._open:
            self._open[role] = [w for w in self._workers.values() if w.hello.role == role and not w.draining]
