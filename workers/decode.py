"""The decode role: reserve a landing place, take the pages in, decode; or prefill here and decode.

Generate --> running --> finished
Reserve --> landing --all ranks Received--> landed --Start--> running        (Start may come before the pages)
               |                              |
               |                              +-- no Start within the lease --> Failed
               +-- Cancel, router gone --> closing --all ranks quiet--> released
               +-- Generate --all ranks quiet--> running, in the reserved pages
               +-- failed on any rank --all ranks quiet--> released, Failed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.kv_transfer.ticket import TransferKey
from slipstream.router.messages import (
    Cancel,
    EngineRequest,
    Failed,
    Generate,
    HandedOff,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    RouterMessage,
    Start,
    StepOutput,
    TokenChunk,
    WorkerMessage,
)
from slipstream.workers.engine.engine import Engine
from slipstream.workers.engine.errors import RequestError
from slipstream.workers.engine.sequence import AttemptKey
from slipstream.workers.group_transfers import GroupTransfers, TransferOutcome
from slipstream.workers.ticket_office import TicketOffice


@dataclass(slots=True)
class _Landing:
    transfer: TransferKey
    started: bool = False
    closing: bool = False  # the pages are given back when the transfer lets go
    failed: Failed | None = None  # to be told once it is closed
    generate_instead: EngineRequest | None = None  # once the transfer lets go

    @property
    def awaits_start(self) -> bool:
        return not (self.started or self.closing or self.generate_instead)


@dataclass(slots=True)
class DecodeRole:
    """`start_lease_s`: how long landed pages wait for the first token before they are given back."""

    engine: Engine
    transfers: GroupTransfers
    tickets: TicketOffice
    start_lease_s: float
    _landings: dict[AttemptKey, _Landing] = field(default_factory=dict)
    _by_transfer: dict[TransferKey, AttemptKey] = field(default_factory=dict)
    _landed: dict[AttemptKey, float] = field(default_factory=dict)  # in order of their deadlines, which it holds
    _running: set[AttemptKey] = field(default_factory=set)
    _refusal: str | None = None

    @property
    def num_attempts(self) -> int:
        return len(self._landings) + len(self._landed) + len(self._running)

    def handle(self, message: RouterMessage, now_s: float) -> Sequence[WorkerMessage]:
        match message:
            case Generate(request=request):
                return self._generate(request)
            case Reserve():
                return self._reserve(message)
            case Start(request_id, attempt, token_ids):
                return self._start((request_id, attempt), token_ids)
            case Cancel(request_id, attempt):
                self._cancel((request_id, attempt))
            case PeerLost(peer):
                self.transfers.peer_lost(peer)
            case Prefill(request=request):
                return [Failed(request.request_id, request.attempt, "this is a decode worker", True)]
        return []

    def _generate(self, request: EngineRequest) -> Sequence[WorkerMessage]:
        key = (request.request_id, request.attempt)
        landing = self._landings.get(key)
        if landing is not None and not landing.closing:
            landing.generate_instead = request
            self.transfers.cancel(landing.transfer)
            return []
        if self._landed.pop(key, None) is not None:
            return self._add(key, request)  # its pages have landed already, and are found in the prefix cache
        if self._refusal is not None:
            return [Failed(*key, self._refusal, True)]
        if landing is not None or key in self._running:
            return [Failed(*key, "this attempt is already here", True)]
        return self._add(key, request)

    def _add(self, key: AttemptKey, request: EngineRequest) -> Sequence[WorkerMessage]:
        try:
            self.engine.add(request)
        except RequestError as error:
            self.engine.abort(key)  # the reservation, if it was to become one
            return [Failed(*key, str(error), False)]
        self._running.add(key)
        return []

    def _reserve(self, message: Reserve) -> Sequence[WorkerMessage]:
        request = message.request
        key = (request.request_id, request.attempt)
        if self._refusal is not None:
            return [Failed(*key, self._refusal, True)]
        if key in self._landings or key in self._landed or key in self._running:
            return [Failed(*key, "this attempt is already here", True)]
        try:
            reservation = self.engine.reserve(request)
        except RequestError as error:
            return [Failed(*key, str(error), False)]
        if reservation is None:
            return [Failed(*key, "no pages", True)]
        ticket = self.tickets.issue(reservation.first_page, len(reservation.page_ids))
        self._landings[key] = _Landing(ticket.key)
        self._by_transfer[ticket.key] = key
        self.transfers.expect(ticket, reservation.page_ids, message.source, message.source_tp)
        return [Reserved(*key, reservation.num_cached_tokens, ticket)]

    def _start(self, key: AttemptKey, token_ids: tuple[int, ...]) -> Sequence[WorkerMessage]:
        landing = self._landings.get(key)
        if key not in self._landed and (landing is None or not landing.awaits_start):
            return []
        try:
            self.engine.start(key, token_ids)
        except RequestError as error:
            failed = Failed(*key, str(error), False)
            self._cancel(key)
            if landing is None:
                return [failed]
            landing.failed = failed
            return []
        if landing is None:
            del self._landed[key]
            self._running.add(key)
        else:
            landing.started = True
        return []

    def _cancel(self, key: AttemptKey) -> None:
        landing = self._landings.get(key)
        if landing is not None and not landing.closing:
            landing.closing = True
            self.engine.abort(key, keep_pages=True)
            self.transfers.cancel(landing.transfer)
        elif key in self._running or key in self._landed:
            self._running.discard(key)
            self._landed.pop(key, None)
            self.engine.abort(key)

    def transfer_ended(self, outcome: TransferOutcome, now_s: float) -> Sequence[WorkerMessage]:
        key = self._by_transfer.pop(outcome.transfer)
        landing = self._landings.pop(key)
        if landing.closing:
            self.engine.release(key)
            return [] if landing.failed is None else [landing.failed]
        if landing.generate_instead is not None:
            return self._add(key, landing.generate_instead)
        if outcome.failure is not None:
            self.engine.abort(key)
            return [Failed(*key, f"pages did not arrive: {outcome.failure}", True)]
        self.engine.land(key)
        if landing.started:
            self._running.add(key)
        else:
            self._landed[key] = now_s + self.start_lease_s
        return [HandedOff(*key, outcome.num_bytes, outcome.seconds)]

    def sampled(self, outputs: Sequence[TokenChunk]) -> Sequence[WorkerMessage]:
        for output in outputs:
            if output.finish_reason is not None:
                self._running.discard((output.request_id, output.attempt))
        return [StepOutput(tuple(outputs))] if outputs else []

    def expire(self, now_s: float) -> Sequence[WorkerMessage]:
        overdue = []
        for key, deadline_s in self._landed.items():
            if deadline_s > now_s:
                break
            overdue.append(key)
        for key in overdue:
            del self._landed[key]
            self.engine.abort(key)
        return [Failed(*key, f"no start within {self.start_lease_s:g} s of landing", True) for key in overdue]

    def next_deadline_s(self) -> float | None:
        return next(iter(self._landed.values()), None)

    def refuse(self, reason: str) -> None:
        self._refusal = reason

    def abandon(self) -> None:
        for key in [*self._landings, *self._landed, *self._running]:
            self._cancel(key)

    def fail_all(self, reason: str) -> Sequence[WorkerMessage]:
        landings = [key for key, landing in self._landings.items() if not landing.closing]
        return [Failed(*key, reason, True) for key in [*landings, *self._landed, *self._running]]
