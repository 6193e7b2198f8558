"""What one worker may hold of its host's memory, as far as it can be known from outside.

Limits and reports cross on the way, so a worker may hold as much as its last report says, or as any limit allows that
it had not received when it sent that report.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import PageLimit, PagesHeld


@dataclass(frozen=True, slots=True)
class BudgetedWorker:
    """A connected worker at one moment. `hosts` are those of its ranks, each of which holds an equal part of the
    `page_bytes`. It came with a limit of `first_limit` pages, and last said `report`. In the router's queue,
    `num_asked` pages' worth of requests wait for it."""

    peer: PeerId
    hosts: tuple[str, ...]
    page_bytes: int
    num_pages: int
    longest: int
    first_limit: int
    report: PagesHeld | None = None
    num_asked: int = 0
    weight: float = 1.0

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def bytes_by_host(self) -> dict[str, float]:
        """How many bytes a page takes on each host."""
        of_rank = self.page_bytes / len(self.hosts)
        return {host: of_rank * self.hosts.count(host) for host in self.hosts}


@dataclass(slots=True)
class PageLedger:
    """The limits of one connection. `target` is where the limit is to go as memory comes free."""

    worker: BudgetedWorker
    bytes_by_host: dict[str, float] = field(init=False)
    limit: int = field(init=False)
    target: int = field(init=False)
    last_seq: int = 0
    _underway: deque[PageLimit] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.limit = self.target = self.worker.first_limit
        self.bytes_by_host = self.worker.bytes_by_host

    def see(self, worker: BudgetedWorker) -> None:
        """Its present state."""
        self.worker = worker
        ack_seq = worker.report.ack_seq if worker.report is not None else 0
        while self._underway and self._underway[0].seq <= ack_seq:
            self._underway.popleft()

    @property
    def num_held(self) -> int:
        """How many pages it may hold now at most."""
        report = self.worker.report
        known = report.num_held if report is not None else self.worker.first_limit
        return max([known, *(one.num_pages for one in self._underway)])

    def change(self, num_pages: int) -> PageLimit:
        """Sets a new limit. Returns the message that is to be sent."""
        self.last_seq += 1
        self.limit = num_pages
        message = PageLimit(self.last_seq, num_pages)
        self._underway.append(message)
        return message
