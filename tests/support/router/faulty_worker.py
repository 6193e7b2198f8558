"""A worker in virtual time over a faulty engine, which at times also forgets an answer or gives an attempt up.

It checks what it is sent: nothing that it has no room for, and no message about an attempt that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    EngineRequest,
    Extend,
    Failed,
    Generate,
    Hello,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    RouterMessage,
    WorkerMessage,
    unpack_ids,
)
from slipstream.workers.interface.engine import AttemptKey
from slipstream.workers.roles.worker_protocol import WorkerProtocol
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from tests.support.router.faulty_engine import FaultyEngine, FaultyTransfers, pages_for, token_at

if TYPE_CHECKING:
    from tests.support.router.faulty_world import World


class FaultyWorker:
    """One incarnation of a worker; `rng` decides how it misbehaves."""

    def __init__(self, world: World, hello: Hello) -> None:
        self.world, self.hello, self.rng = world, hello, world.rng
        self.alive = True
        engine, transfers = self.engine, self.transfers = FaultyEngine(self), FaultyTransfers(self)
        tickets = TicketIssuer(hello.worker, hello.addresses, 8, 2, 2, 64)
        self.protocol = WorkerProtocol.in_role(hello.role, engine, transfers, tickets)
        self.seen: set[AttemptKey] = set()
        self.cancelled: set[AttemptKey] = set()
        self.acked = 0
        self.report_due = False
        self.inbound_free_s = self.outbound_free_s = 0.0

    @property
    def free(self) -> tuple[int, int, int]:
        capacity = self.engine.capacity()
        return capacity.free_slots, capacity.free_pages, capacity.free_tokens

    def later(self, about_s: float, do: Callable[[], None]) -> None:
        slowness = self.rng.choice([0.1, 0.5, 1, 1, 2, 20])
        self.world.after(slowness * about_s, lambda: do() if self.alive else None)

    def hear(self, message: RouterMessage) -> None:
        self._check(message)
        self.tell(self.protocol.handle(message, self.world.now))

    def tell(self, messages: Iterable[WorkerMessage]) -> None:
        """To the router, over a connection that keeps its order. Credits follow a little later, several changes at
        once."""
        for message in messages:
            if isinstance(message, Reserved) and self.world.fault_chance() < 0.03:
                continue  # it forgets to answer
            self._say(message)
        self.changed()
        if self.protocol.is_finished:
            self.later(0.1, lambda: self.world.lose(self))

    def changed(self) -> None:
        if not self.report_due:
            self.report_due = True
            self.later(0.02, self._report)

    def give_up(self, request: EngineRequest, reason: str) -> None:
        key = (request.request_id, request.attempt)
        self.tell([*self.protocol.role.handle(Cancel(*key), self.world.now), Failed(*key, reason, retryable=True)])

    def _report(self) -> None:
        self.report_due = False
        for message in self.protocol.reports(self.world.now):
            self._say(message)

    def _say(self, message: WorkerMessage) -> None:
        self.outbound_free_s = max(self.outbound_free_s, self.world.now + self.rng.expovariate(200))
        self.world.at(self.outbound_free_s, lambda: self.world.worker_said(self, message))

    def _check(self, message: RouterMessage) -> None:
        match message:
            case Generate(seq, request):
                self._spend(seq)
                sequence = self.engine.sequences.get((request.request_id, request.attempt))
                if sequence is None:
                    self._check_room(request, 1)
                else:
                    assert not sequence.closing
            case Reserve(seq, request):
                self._spend(seq)
                self._check_room(request, 1)
            case Prefill(seq, request):
                self._spend(seq)
                self._check_room(request, 0)
            case Adopt(seq, request, _, _, num_room_tokens):
                self._spend(seq)
                self._check_room(request, max(num_room_tokens, 1))
            case Extend(seq):
                self._spend(seq)
            case Cancel(request_id, attempt):
                key = (request_id, attempt)
                assert key in self.seen, "Cancel for an attempt that never came here"
                assert key not in self.cancelled, "Cancel comes once"
                self.cancelled.add(key)
            case PeerLost(peer):
                assert peer != self.hello.worker

    def _spend(self, seq: int) -> None:
        assert seq == self.acked + 1, "spending messages are numbered without a gap"
        self.acked = seq

    def _check_room(self, request: EngineRequest, num_room_tokens: int) -> None:
        assert not self.protocol.is_draining, "new work after Drain"
        key = (request.request_id, request.attempt)
        assert key not in self.seen, "an attempt is placed once"
        self.seen.add(key)
        output = unpack_ids(request.output_ids)
        assert output == [token_at(request.request_id, i) for i in range(len(output))]
        assert len(output) < request.sampling.max_tokens
        num_tokens = len(request.prompt_ids) // 4 + len(output)
        slots, pages, tokens = self.free
        assert pages >= pages_for(num_tokens + num_room_tokens), "pages overspent"
        if num_room_tokens:
            assert slots >= 1, "slots overspent"
        else:
            assert tokens >= min(num_tokens, self.hello.max_queued_tokens), "tokens overspent"
