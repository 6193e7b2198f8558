"""A worker as its router sees it: what it does with each message, and what it reports by itself.

               RouterMessage                       WorkerMessage
    router ---------------------> WorkerProtocol ------------------> router
                                    |  Role: attempts, reservations, migrations, cancel
                                    |  credits, drain, prefix cache, page limit, statistics
                                    v
                         Engine, PageTransfers  (native, mock, ...)

There are no sockets, threads or clocks in it. A driver hands it the messages and the ends of transfers as they come,
and the output of each step (`role.sampled`). Then it sends what all these calls have returned, and after that
`reports`. Times are seconds of any monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.router.protocol.messages import (
    Adopt,
    Credits,
    Drain,
    Extend,
    Generate,
    PageLimit,
    Prefill,
    Reserve,
    ResyncBlocks,
    Retain,
    RouterMessage,
    WorkerMessage,
)
from slipstream.router.protocol.messages import Role as RoleName
from slipstream.workers.interface.engine import Engine
from slipstream.workers.interface.page_transfers import PageTransfers, TransferOutcome
from slipstream.workers.roles.decode import DecodeRole
from slipstream.workers.roles.prefill import PrefillRole
from slipstream.workers.roles.role import Role
from slipstream.workers.telemetry.block_events import BlockEvents
from slipstream.workers.telemetry.page_reports import PageReports
from slipstream.workers.telemetry.stats_collector import StatsCollector
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

SPENDING = (Generate, Reserve, Prefill, Adopt, Extend)  # the messages that spend credits


@dataclass(slots=True)
class WorkerProtocol:
    """One role from its beginning to its end, over any number of router connections.

    Without `stats` it reports no statistics. Step times are the driver's to report.
    """

    engine: Engine
    role: Role
    transfers: PageTransfers
    stats: StatsCollector | None = None
    drain_s: float = math.inf  # how long the attempts of a worker that the router drains may take
    is_draining: bool = False
    is_stopped: bool = False  # at once, whatever is still here
    next_role: RoleName | None = None  # after the drain; None: the worker ends
    blocks: BlockEvents = field(init=False)
    pages: PageReports = field(init=False)
    last_seq: int = 0  # the last message that spent credits
    _drained_by_s: float = math.inf
    _credits: Credits | None = None  # as last reported

    def __post_init__(self) -> None:
        self.blocks = BlockEvents(self.engine.prefix_cache)
        self.pages = PageReports(self.engine)

    @classmethod
    def in_role(
        cls,
        role: RoleName,
        engine: Engine,
        transfers: PageTransfers,
        tickets: TicketIssuer,
        start_lease_s: float = math.inf,
        stats: StatsCollector | None = None,
        drain_s: float = math.inf,
    ) -> WorkerProtocol:
        """`start_lease_s`: see `DecodeRole`."""
        if role == "prefill":
            return cls(engine, PrefillRole(engine, transfers), transfers, stats, drain_s)
        return cls(engine, DecodeRole(engine, transfers, tickets, start_lease_s), transfers, stats, drain_s)

    @property
    def is_quiet(self) -> bool:
        """Whether it holds nothing of any attempt."""
        return self.role.num_attempts == 0 and self.transfers.num_active == 0

    @property
    def is_finished(self) -> bool:
        return self.is_stopped or (self.is_draining and self.is_quiet)

    def start_over(self) -> None:
        """A new connection begins, on which the router knows nothing yet. The attempts of the last one are gone."""
        self.last_seq = 0
        self._credits = None
        self.blocks.start_over()
        self.pages.start_over()
        if self.stats is not None:
            self.stats.start_over()

    def handle(self, message: RouterMessage, now_s: float) -> Sequence[WorkerMessage]:
        """A message of the router. Those about the connection itself (Welcome, Ping, ...) are the driver's."""
        self.engine.prefix_cache.order.advance(now_s)
        match message:
            case Retain(request_id, retention):
                self.engine.prefix_cache.order.retain(request_id, retention)
            case ResyncBlocks():
                self.blocks.resync()
            case PageLimit(seq, num_pages):
                self.engine.set_page_limit(num_pages)
                self.pages.limited(seq)
            case Drain(next_role):
                self.drain(now_s, self.drain_s, next_role)
            case _:
                out = self.role.handle(message, now_s)
                if isinstance(message, SPENDING):
                    self.last_seq = max(self.last_seq, message.seq)
                return out
        return ()

    def transfer_ended(self, outcome: TransferOutcome, now_s: float) -> Sequence[WorkerMessage]:
        if self.stats is not None:
            self.stats.count_transfer(outcome)
        return self.role.transfer_ended(outcome, now_s)

    def drain(self, now_s: float, within_s: float, next_role: RoleName | None) -> None:
        """Takes nothing new from now on, and is finished when the last attempt has ended or, within `within_s`, all
        have been ended. Only the first call counts."""
        if self.is_draining:
            return
        self.is_draining = True
        self.next_role = next_role
        self._drained_by_s = now_s + within_s
        self.role.refuse("the worker drains")

    def tick(self, now_s: float) -> Sequence[WorkerMessage]:
        """Gives up what has waited too long."""
        out = self.role.expire(now_s)
        if now_s < self._drained_by_s:
            return out
        self._drained_by_s = math.inf
        if self.next_role is None:
            self.is_stopped = True
            return out
        # The router has their tokens, so they continue elsewhere.
        out = [*out, *self.role.fail_all("the worker drains, and this has taken too long")]
        self.role.abandon()
        return out

    def next_deadline_s(self) -> float | None:
        """When `tick` will next have something to do."""
        due_s = self.role.next_deadline_s()
        if self._drained_by_s == math.inf:
            return due_s
        return self._drained_by_s if due_s is None else min(due_s, self._drained_by_s)

    def reports(self, now_s: float) -> list[WorkerMessage]:
        """What is to be reported after a step, or after messages if there is none: credits, changes of the prefix
        cache, pages held and statistics."""
        self.engine.prefix_cache.order.advance(now_s)
        out: list[WorkerMessage] = []
        credits = self.count_credits()
        if credits != self._credits:
            self._credits = credits
            out.append(credits)
        out += self.blocks.due(now_s)
        if (pages := self.pages.due(now_s)) is not None:
            out.append(pages)
        if self.stats is not None and (stats := self.stats.due(now_s)) is not None:
            out.append(stats)
        return out

    def next_report_s(self) -> float | None:
        """When `reports` will next have something by itself."""
        first = self.stats.next_due_s() if self.stats is not None else None
        for due_s in (self.blocks.next_due_s(), self.pages.next_due_s()):
            if due_s is not None and (first is None or due_s < first):
                first = due_s
        return first

    def count_credits(self) -> Credits:
        if self.is_draining:
            return Credits(self.last_seq, 0, 0, 0)
        capacity = self.engine.capacity()
        return Credits(self.last_seq, capacity.free_slots, capacity.free_pages, capacity.free_tokens)
