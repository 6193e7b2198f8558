"""A mock worker (`slipstream mock-worker`) as a process in virtual time: the real one behind a played connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.block_hash import pack_block_ids, unpack_block_ids
from slipstream.router.protocol.messages import Role, RouterMessage, Welcome, WorkerMessage
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_worker import MockWorker
from slipstream.workers.transfers.ticket_issuer import TicketIssuer
from tests.support.faults.clockwork import Clockwork
from tests.support.faults.toy_model import PAGE_TOKENS, VOCAB_SIZE
from tests.support.faults.virtual_process import Chances, Process, RouterDoor

NOWHERE = TransferAddress("wire", 0)
MAX_MODEL_LEN, MAX_QUEUED_TOKENS = 112, 120


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
        reserves_output: bool,
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
            reserves_output=reserves_output,
        )
        self.tickets = TicketIssuer(PeerId(name, last_epoch), (NOWHERE,), 8, 2, 2, 32)
        self._begin()

    def _begin(self) -> None:
        peer = self.tickets.open_epoch()
        self._turn_at_s = float("inf")  # the timers of the one before mean nothing any more
        self._worker = MockWorker(self._profile, self.role, self.tickets, "toy")
        self.connect(self._profile.hello(peer, self.role, "toy", NOWHERE))

    def lost_router(self) -> None:
        if self._worker.protocol.is_draining and self._worker.protocol.next_role is None:
            self.kill()
        else:
            self._change_role()

    def _change_role(self) -> None:
        self.role = self._worker.protocol.next_role or self.role
        self._begin()

    def hear(self, message: RouterMessage) -> None:
        self._tell([] if isinstance(message, Welcome) else self._worker.handle(message, self.clock.now))

    def _tell(self, messages: Sequence[WorkerMessage]) -> None:
        worker, protocol = self._worker, self._worker.protocol
        self.send([*messages, *worker.reports(self.clock.now)])
        if protocol.is_finished:
            if protocol.next_role is None:
                self.kill()
            else:
                self.disconnect()
                self._change_role()
            return
        due = [at for at in (worker.next_deadline_s(), protocol.next_report_s()) if at is not None]
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
            self._tell(self._worker.advance(self.clock.now))

    def tell_the_truth(self) -> None:
        if self._told_lie:
            self._worker.protocol._credits = None
        if self._has_lost_blocks:
            self._worker.protocol.blocks.resync()
        if self._is_welcome:
            self._tell([])

    @property
    def free(self) -> tuple[int, int, int]:
        engine, profile = self._worker.engine, self._profile
        return (
            profile.max_slots - len(engine.book),
            engine.book.pages.num_free,
            profile.max_queued_tokens - engine.batch.num_queued_tokens,
        )

    @property
    def cached_blocks(self) -> frozenset[int]:
        return frozenset(unpack_block_ids(pack_block_ids(self._worker.engine.prefix_cache.digests())))

    def works_on(self, request_id: str) -> bool:
        return any(attempt.key[0] == request_id for attempt in self._worker.engine.book)

    @property
    def num_in_flight(self) -> int:
        return 0

    def check_at_rest(self) -> None:
        assert self._worker.protocol.is_quiet, f"{self.name}: attempts left"
        assert len(self._worker.engine.book) == 0, f"{self.name}: attempts left"
        assert self._worker.engine.book.pages.num_used == 0, f"{self.name}: pages left"
        assert self._is_welcome, f"{self.name} is not connected"
