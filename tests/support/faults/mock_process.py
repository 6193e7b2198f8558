"""A mock worker (`slipstream mock-worker`) as a process in virtual time: its real engine behind a played connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.block_hash import pack_block_ids, unpack_block_ids
from slipstream.router.protocol.messages import (
    Drain,
    ResyncBlocks,
    Role,
    RouterMessage,
    Welcome,
    WorkerMessage,
)
from slipstream.workers.mock.mock_engine import MockEngine
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.telemetry.block_events import BlockEvents
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from tests.support.faults.clockwork import Clockwork
from tests.support.faults.toy_model import PAGE_TOKENS, VOCAB_SIZE
from tests.support.faults.virtual_process import Chances, Process, RouterDoor

NOWHERE = TransferAddress("wire", 0)
MAX_MODEL_LEN, MAX_QUEUED_TOKENS = 112, 120


class WatchedEngine(MockEngine):
    def has(self, request_id: str) -> bool:
        """Whether an attempt at a request is here."""
        return any(attempt.key[0] == request_id for attempt in self._book)

    def forget_told(self) -> None:
        """Credits are news again, whatever they are."""
        self._told = None


class MockProcess(Process):
    def __init__(
        self,
        clock: Clockwork,
        door: RouterDoor,
        chances: Chances,
        name: str,
        role: Role,
        num_pages: int,
        max_slots: int,
        last_epoch: int,
        on_end: Callable[[Any], None],
    ) -> None:
        super().__init__(clock, door, chances, name, role, on_end)
        self._profile = MockProfile(
            page_tokens=PAGE_TOKENS,
            num_pages=num_pages,
            max_slots=max_slots,
            max_model_len=min(num_pages * PAGE_TOKENS, MAX_MODEL_LEN),
            max_queued_tokens=MAX_QUEUED_TOKENS,
            max_step_tokens=clock.rng.choice((16, 40)),
            vocab_size=VOCAB_SIZE,
            step_s=0.003,
            prefill_token_s=0.0005,
            transfer_s=0.002,
            transfer_page_s=0.0005,
            start_lease_s=2.0,
        )
        self.tickets = TicketIssuer(PeerId(name, last_epoch), (NOWHERE,), 8, 2, 2, 32)
        self._is_draining = False
        self._next_role: Role | None = None
        self._begin()

    # ---- an incarnation

    def _begin(self) -> None:
        worker = self.tickets.open_epoch()
        self._turn_at_s = float("inf")  # the timers of the one before mean nothing any more
        self._engine = WatchedEngine(self._profile, self.role, self.tickets, "toy")
        if self._is_draining:
            self._engine.refuse("the worker drains")
        self._blocks = BlockEvents(self._engine.pages)
        self.connect(self._profile.hello(worker, self.role, "toy", NOWHERE))

    def lost_router(self) -> None:
        if self._is_draining and self._next_role is None:
            self.kill()
        else:
            self._change_role()

    def _change_role(self) -> None:
        if self._next_role is not None:
            self.role, self._next_role, self._is_draining = self._next_role, None, False
        self._begin()

    def hear(self, message: RouterMessage) -> None:
        match message:
            case Welcome():
                self._tell([])
            case Drain(next_role):
                self._is_draining, self._next_role = True, next_role
                self._engine.refuse("the worker drains")
                self._tell([])
            case ResyncBlocks():
                self._blocks.resync()
                self._tell([])
            case _:
                self._tell(self._engine.handle(message, self.clock.now))

    def _tell(self, messages: Sequence[WorkerMessage]) -> None:
        now = self.clock.now
        said = list(messages)
        if (times := self._engine.step_times(now)) is not None:
            said.append(times)
        if (credits := self._engine.credits()) is not None:
            said.append(credits)
        said += self._blocks.due(now)
        self.send(said)
        if self._is_draining and self._engine.num_attempts == 0:
            if self._next_role is None:
                self.kill()
            else:
                self.disconnect()
                self._change_role()
            return
        due = [at for at in (self._engine.next_deadline_s(), self._blocks.next_due_s()) if at is not None]
        if due and self._is_welcome:
            self._wake(min(due))

    def _wake(self, at_s: float) -> None:
        at_s = max(at_s, self.clock.now)
        if at_s < self._turn_at_s:
            self._turn_at_s = at_s
            self.clock.at(at_s, self.gate(lambda: self._turn(at_s)))

    def _turn(self, at_s: float) -> None:
        if at_s == self._turn_at_s:
            self._turn_at_s = float("inf")
            self._tell(self._engine.advance(self.clock.now))

    # ---- what can be seen

    def tell_the_truth(self) -> None:
        if self._told_lie:
            self._engine.forget_told()
        if self._has_lost_blocks:
            self._blocks.resync()
        if self._is_welcome:
            self._tell([])

    @property
    def free(self) -> tuple[int, int, int]:
        engine, profile = self._engine, self._profile
        return (
            profile.max_slots - engine.num_attempts,
            engine.pages.num_free,
            profile.max_queued_tokens - engine.num_queued_tokens,
        )

    @property
    def cached_blocks(self) -> frozenset[int]:
        return frozenset(unpack_block_ids(pack_block_ids(self._engine.pages.digests())))

    def works_on(self, request_id: str) -> bool:
        return self._engine.has(request_id)

    @property
    def num_in_flight(self) -> int:
        return 0

    def check_at_rest(self) -> None:
        assert self._engine.num_attempts == 0, f"{self.name}: attempts left"
        assert self._engine.pages.num_used == 0, f"{self.name}: pages left"
        assert self._is_welcome, f"{self.name} is not connected"
