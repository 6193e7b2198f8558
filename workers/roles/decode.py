"""The decode role: reserves pages, receives the KV into them, and decodes; or prefills here and decodes.

Generate --> running --> finished
Reserve --> landing --all ranks Received--> landed --Start--> running        (Start may come before the pages)
               |                              |
               |                              +-- no Start within the lease --> Failed
               +-- Cancel, router gone --> closing --all ranks quiet--> released
               +-- Generate --all ranks quiet--> running, in the reserved pages
               +-- failed on any rank --all ranks quiet--> released, Failed

Adopt --> landing --all ranks Received--> copied --Extend--> landing ...  the last round goes on like a `Reserve`

`outgoing_migrations` handles sequences that leave for another worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from slipstream.kv_transfer.api.ticket import PeerId, TransferKey
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Copied,
    EngineRequest,
    Extend,
    Failed,
    Generate,
    HandedOff,
    Migrate,
    PeerLost,
    Prefill,
    Reserve,
    Reserved,
    Resume,
    RouterMessage,
    Start,
    StepOutput,
    TokenChunk,
    WorkerMessage,
)
from slipstream.workers.interface.engine import AttemptKey, Engine, EngineRequestError, NoRoomError, Reservation
from slipstream.workers.interface.page_transfers import PageTransfers, TransferOutcome
from slipstream.workers.roles.outgoing_migrations import OutgoingMigrations
from slipstream.workers.transfers.ticket_issuer import TicketIssuer


@dataclass(slots=True)
class _IncomingAttempt:
    transfer: TransferKey
    source: PeerId
    source_tp: int
    is_copy: bool = False  # the sequence is still decoding elsewhere, and more of its pages will come
    started: bool = False
    closing: bool = False  # given up: the pages are released once the transfer has released them
    failed: Failed | None = None  # to be sent once it is closed
    generate_instead: EngineRequest | None = None  # to be started once the transfer has ended

    @property
    def awaits_start(self) -> bool:
        return not (self.is_copy or self.started or self.closing or self.generate_instead)


@dataclass(frozen=True, slots=True)
class _CopiedPages:
    """The pages that have landed of a sequence that is still decoding at `source`."""

    source: PeerId
    source_tp: int
    deadline_s: float


@dataclass(slots=True)
class DecodeRole:
    """Follows the attempts of a decode worker. Landed pages wait `start_lease_s` for the router's next message before
    they are released."""

    engine: Engine
    transfers: PageTransfers
    tickets: TicketIssuer
    start_lease_s: float
    _landings: dict[AttemptKey, _IncomingAttempt] = field(default_factory=dict)
    _by_transfer: dict[TransferKey, AttemptKey] = field(default_factory=dict)
    _landed: dict[AttemptKey, float] = field(default_factory=dict)  # with their deadlines, in that order
    _copied: dict[AttemptKey, _CopiedPages] = field(default_factory=dict)  # also in the order of their deadlines
    _running: set[AttemptKey] = field(default_factory=set)  # including frozen ones
    _outgoing: OutgoingMigrations = field(init=False)
    _refusal: str | None = None

    def __post_init__(self) -> None:
        self._outgoing = OutgoingMigrations(self.engine, self.transfers)

    @property
    def num_attempts(self) -> int:
        return len(self._landings) + len(self._landed) + len(self._copied) + len(self._running)

    def handle(self, message: RouterMessage, now_s: float) -> Sequence[WorkerMessage]:
        match message:
            case Generate(request=request):
                return self._generate(request)
            case Reserve():
                return self._reserve(message)
            case Start(request_id, attempt, token_ids):
                return self._start((request_id, attempt), token_ids)
            case Adopt():
                return self._adopt(message)
            case Extend():
                return self._extend(message)
            case Migrate():
                return self._outgoing.begin(message)
            case Resume(request_id, attempt):
                self._outgoing.resume((request_id, attempt))
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
            return self._add(key, request)  # its pages have already landed, and will be found in the prefix cache
        if self._refusal is not None:
            return [Failed(*key, self._refusal, True)]
        if landing is not None or key in self._running:
            return [Failed(*key, "this attempt is already here", True)]
        return self._add(key, request)

    def _add(self, key: AttemptKey, request: EngineRequest) -> Sequence[WorkerMessage]:
        try:
            self.engine.add(request)
        except (EngineRequestError, NoRoomError) as error:
            self.engine.abort(key)  # also drops a reservation that was to become this sequence
            return [Failed(*key, str(error), isinstance(error, NoRoomError))]
        self._running.add(key)
        return []

    def _reserve(self, message: Reserve) -> Sequence[WorkerMessage]:
        key = (message.request.request_id, message.request.attempt)
        refusal = self._refusal or self._already_here(key)
        if refusal:
            return [Failed(*key, refusal, True)]
        try:
            reservation = self.engine.reserve(message.request)
        except EngineRequestError as error:
            return [Failed(*key, str(error), False)]
        return self._expect(key, reservation, message.source, message.source_tp)

    def _adopt(self, message: Adopt) -> Sequence[WorkerMessage]:
        key = (message.request.request_id, message.request.attempt)
        refusal = self._refusal or self._already_here(key)
        if refusal:
            return [Failed(*key, refusal, True)]
        try:
            reservation = self.engine.adopt(message.request, message.num_room_tokens)
        except EngineRequestError as error:
            return [Failed(*key, str(error), True)]
        return self._expect(key, reservation, message.source, message.source_tp, is_copy=not message.num_room_tokens)

    def _extend(self, message: Extend) -> Sequence[WorkerMessage]:
        key = (message.request_id, message.attempt)
        copied = self._copied.pop(key, None)
        if copied is None:
            return []
        try:
            reservation = self.engine.migrations.extend(key, message.token_ids, message.num_room_tokens)
        except EngineRequestError as error:
            self.engine.abort(key)
            return [Failed(*key, str(error), True)]
        if reservation is None:
            self.engine.abort(key)
        return self._expect(key, reservation, copied.source, copied.source_tp, is_copy=not message.num_room_tokens)

    def _already_here(self, key: AttemptKey) -> str:
        """Why the attempt cannot begin: it has begun before. "" if it has not."""
        stages = (self._landings, self._landed, self._copied, self._running)
        return "this attempt is already here" if any(key in stage for stage in stages) else ""

    def _expect(
        self, key: AttemptKey, reservation: Reservation | None, source: PeerId, source_tp: int, is_copy: bool = False
    ) -> Sequence[WorkerMessage]:
        """Issues a ticket and posts receives for the reserved pages."""
        if reservation is None:
            return [Failed(*key, "no pages", True)]
        ticket = self.tickets.issue(reservation.first_page, len(reservation.page_ids), reservation.num_tokens)
        self._landings[key] = _IncomingAttempt(ticket.key, source, source_tp, is_copy)
        self._by_transfer[ticket.key] = key
        self.transfers.expect(ticket, reservation, source, source_tp)
        return [Reserved(*key, reservation.num_cached_tokens, ticket)]

    def _start(self, key: AttemptKey, token_ids: tuple[int, ...]) -> Sequence[WorkerMessage]:
        landing = self._landings.get(key)
        if key not in self._landed and (landing is None or not landing.awaits_start):
            return []
        try:
            self.engine.start(key, token_ids)
        except EngineRequestError as error:
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
        elif key in self._running or key in self._landed or key in self._copied:
            self._running.discard(key)
            self._landed.pop(key, None)
            self._copied.pop(key, None)
            self._outgoing.end(key)
            self.engine.abort(key)

    def transfer_ended(self, outcome: TransferOutcome, now_s: float) -> Sequence[WorkerMessage]:
        if self._outgoing.knows(outcome.transfer):
            return self._outgoing.transfer_ended(outcome)
        key = self._by_transfer.pop(outcome.transfer)
        landing = self._landings.pop(key)
        if landing.closing:
            self.engine.release(key)
            return [] if landing.failed is None else [landing.failed]
        if landing.generate_instead is not None:
            return self._add(key, landing.generate_instead)
        if outcome.failure is not None:
            self.engine.abort(key)
            return [Failed(*key, f"pages did not arrive: {outcome.failure}", True, outcome.is_unreachable)]
        if landing.is_copy:
            self.engine.migrations.copied(key)
            self._copied[key] = _CopiedPages(landing.source, landing.source_tp, now_s + self.start_lease_s)
            return [Copied(*key, outcome.transfer.transfer_id, outcome.num_bytes, outcome.seconds)]
        self.engine.land(key)
        if landing.started:
            self._running.add(key)
        else:
            self._landed[key] = now_s + self.start_lease_s
        return [HandedOff(*key, outcome.num_bytes, outcome.seconds)]

    def sampled(self, outputs: Sequence[TokenChunk]) -> Sequence[WorkerMessage]:
        for output in outputs:
            if output.finish_reason is not None:
                key = (output.request_id, output.attempt)
                self._running.discard(key)
                self._outgoing.end(key)
        frozen = self._outgoing.step_ended()
        return [StepOutput(tuple(outputs)), *frozen] if outputs else frozen

    def expire(self, now_s: float) -> Sequence[WorkerMessage]:
        if not self._landed and not self._copied:
            return ()
        landed = [*takewhile(lambda key: self._landed[key] <= now_s, self._landed)]
        copied = [*takewhile(lambda key: self._copied[key].deadline_s <= now_s, self._copied)]
        for key in (*landed, *copied):
            self._cancel(key)
        within = f"within {self.start_lease_s:g} s of landing"
        return [
            *(Failed(*key, f"no start {within}", True) for key in landed),
            *(Failed(*key, f"no more of it {within}", True) for key in copied),
        ]

    def next_deadline_s(self) -> float | None:
        """The earliest deadline: that of the first entry of each kind, as all entries of a kind wait equally long."""
        copied = next(iter(self._copied.values()), None)
        deadlines = [*islice(self._landed.values(), 1), *([copied.deadline_s] if copied is not None else [])]
        return min(deadlines, default=None)

    def refuse(self, reason: str) -> None:
        self._refusal = reason

    def abandon(self) -> None:
        for key in [*self._landings, *self._landed, *self._copied, *self._running]:
            self._cancel(key)

    def fail_all(self, reason: str) -> Sequence[WorkerMessage]:
        landings = [key for key, landing in self._landings.items() if not landing.closing]
        return [Failed(*key, reason, True) for key in [*landings, *self._landed, *self._copied, *self._running]]
