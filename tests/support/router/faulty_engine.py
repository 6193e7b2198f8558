"""An engine and page transfers in virtual time that at times have no pages, break links and spoil checksums."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferKey
from slipstream.router.protocol.messages import EngineRequest, TokenChunk, unpack_ids
from slipstream.workers.interface.cache_changes import CacheChanges
from slipstream.workers.interface.engine import AttemptKey, Capacity, EngineRequestError, PageUse, Reservation
from slipstream.workers.interface.page_transfers import TransferOutcome
from slipstream.workers.retention.eviction_order import EvictionOrder

if TYPE_CHECKING:
    from tests.support.router.faulty_worker import FaultyWorker

PAGE_TOKENS = 16


def token_at(request_id: str, index: int) -> int:
    return (int(request_id[1:]) * 7919 + index * 31) % 50_021


def natural_end(request_id: str) -> int:
    """The number of tokens after which this request's model would stop by itself."""
    return 1 + int(request_id[1:]) * 13 % 17


def expected_output(request_id: str, max_tokens: int) -> tuple[list[int], str]:
    end = natural_end(request_id)
    reason = "stop" if end <= max_tokens else "length"
    return [token_at(request_id, index) for index in range(min(end, max_tokens))], reason


def pages_for(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_TOKENS)


@dataclass(eq=False)
class Sequence:
    request: EngineRequest
    pages: int
    slots: int
    output: list[int]
    uncomputed: int = 0
    landed: bool = False
    started: bool = False
    closing: bool = False
    frozen: bool = False
    parked: bool = False  # its next step fell into the time in which it was frozen

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_ids) // 4 + len(self.output)


@dataclass
class EmptyCache:
    changes: CacheChanges = field(default_factory=CacheChanges)
    order: EvictionOrder[bytes] = field(default_factory=EvictionOrder)

    def digests(self) -> Seq[bytes]:
        return ()


class FaultyEngine:
    """`Engine` and its `migrations`. Every sequence has steps of its own, at random times."""

    def __init__(self, worker: FaultyWorker) -> None:
        self.sequences: dict[AttemptKey, Sequence] = {}
        self.prefix_cache = EmptyCache()
        self._worker = worker
        self.page_limit = worker.hello.num_pages

    @property
    def migrations(self) -> FaultyEngine:
        return self

    def add(self, request: EngineRequest) -> None:
        sequence = self.sequences.get((request.request_id, request.attempt)) or self._take(request, 1)
        sequence.landed = True
        self._start(sequence, 0.05)

    def add_prefill(self, request: EngineRequest, ticket: HandoffTicket) -> None:
        sequence = self._take(request, 0)
        sequence.slots, sequence.uncomputed = 0, sequence.num_tokens
        self._worker.later(0.1, lambda: self._prefill(sequence, ticket))

    def reserve(self, request: EngineRequest) -> Reservation | None:
        return self._wanted(self._take(request, 1))

    def adopt(self, request: EngineRequest, num_room_tokens: int) -> Reservation | None:
        return self._wanted(self._take(request, max(num_room_tokens, 1)))

    def start(self, key: AttemptKey, token_ids: tuple[int, ...]) -> None:
        sequence = self.sequences[key]
        assert not sequence.started, "Start comes once"
        sequence.output += token_ids
        self._start(sequence, 0.02)

    def land(self, key: AttemptKey) -> None:
        sequence = self.sequences[key]
        sequence.landed = True
        if sequence.started:
            self._start(sequence, 0.02)

    def release(self, key: AttemptKey) -> None:
        self.abort(key)

    def abort(self, key: AttemptKey, keep_pages: bool = False) -> None:
        sequence = self.sequences.get(key)
        if sequence is not None:
            sequence.closing = True
            if not keep_pages:
                del self.sequences[key]

    def extend(self, key: AttemptKey, token_ids: tuple[int, ...], num_room_tokens: int) -> Reservation | None:
        sequence = self.sequences[key]
        sequence.output += token_ids
        need = max(sequence.pages, pages_for(sequence.num_tokens + max(num_room_tokens, 1)))
        if self.capacity().free_pages < need - sequence.pages:
            return None
        sequence.pages = need
        return self._wanted(sequence)

    def copied(self, key: AttemptKey) -> None:
        assert not self.sequences[key].landed

    def check_ticket(self, key: AttemptKey, ticket: HandoffTicket, freeze: bool) -> None:
        sequence = self.sequences.get(key)
        if sequence is None or sequence.closing:
            raise EngineRequestError("request_id", "is not here")
        assert sequence.landed
        assert sequence.started
        assert not sequence.frozen
        if self._worker.world.fault_chance() < 0.1:
            raise EngineRequestError("ticket", "is outgrown")

    def interrupt(self, key: AttemptKey) -> bool:
        return False

    def freeze(self, key: AttemptKey) -> int:
        sequence = self.sequences[key]
        sequence.frozen = True
        return len(sequence.output)

    def resume(self, key: AttemptKey) -> None:
        sequence = self.sequences.get(key)
        if sequence is not None and sequence.frozen:
            sequence.frozen = False
            if sequence.parked:
                sequence.parked = False
                self._start(sequence, 0.02)

    def begin_send(self, key: AttemptKey, ticket: HandoffTicket) -> range:
        return range(ticket.num_pages)

    def end_send(self, key: AttemptKey) -> None:
        """Pages are only counted, so none had to stay."""

    def capacity(self) -> Capacity:
        hello, sequences = self._worker.hello, self.sequences.values()
        return Capacity(
            hello.max_slots - sum(s.slots for s in sequences),
            self.page_limit - sum(s.pages for s in sequences),
            hello.max_queued_tokens - sum(s.uncomputed for s in sequences),
        )

    def set_page_limit(self, num_pages: int) -> None:
        self.page_limit = min(num_pages, self._worker.hello.num_pages)

    def page_use(self) -> PageUse:
        num_used = sum(s.pages for s in self.sequences.values())
        return PageUse(max(self.page_limit, num_used), num_used, 0, 0)

    def _take(self, request: EngineRequest, num_room_tokens: int) -> Sequence:
        output = unpack_ids(request.output_ids)
        sequence = Sequence(request, 0, 1, output)
        sequence.pages = pages_for(sequence.num_tokens + num_room_tokens)
        self.sequences[request.request_id, request.attempt] = sequence
        return sequence

    def _wanted(self, sequence: Sequence) -> Reservation | None:
        key = (sequence.request.request_id, sequence.request.attempt)
        if self._worker.world.fault_chance() < 0.03:
            self.abort(key)
            return None
        cached = self._worker.rng.choice([0, 0, 0, (sequence.num_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS])
        return Reservation(key, cached, 0, range(sequence.pages))

    def _start(self, sequence: Sequence, about_s: float) -> None:
        sequence.started = True
        if sequence.landed:
            self._worker.later(about_s, lambda: self._decode(sequence))

    def _decode(self, sequence: Sequence) -> None:
        if sequence.closing:
            return
        if sequence.frozen:
            sequence.parked = True
        elif self._worker.world.fault_chance() < 0.01:
            self._worker.give_up(sequence.request, "out of memory")
        elif not self._step(sequence, self._worker.rng.randint(1, 4)):
            self._start(sequence, 0.03)

    def _prefill(self, sequence: Sequence, ticket: HandoffTicket) -> None:
        if sequence.closing:
            return
        if self._worker.world.fault_chance() < 0.03:
            self._worker.give_up(sequence.request, "out of memory")
            return
        sequence.uncomputed = 0
        transfers = self._worker.transfers
        transfers.begin(ticket)
        self._step(sequence, 1)
        self._worker.later(0.05, lambda: transfers.deliver(ticket))

    def _step(self, sequence: Sequence, count: int) -> bool:
        """Samples the next tokens, now and then some of them again. True: the sequence is over."""
        request_id, attempt = sequence.request.request_id, sequence.request.attempt
        expected, reason = expected_output(request_id, sequence.request.sampling.max_tokens)
        start = len(sequence.output)
        assert sequence.output == expected[:start]
        tokens = expected[start : start + count]
        sequence.output += tokens
        is_over = len(sequence.output) == len(expected)
        if is_over and sequence.slots:
            self.abort((request_id, attempt))
        chunk = TokenChunk(request_id, attempt, start, tuple(tokens), (), reason if is_over else None)
        chunks = [[chunk]]
        if self._worker.rng.random() < 0.1:
            again = max(start - 2, len(sequence.request.output_ids) // 4)
            chunks.append([TokenChunk(request_id, attempt, again, tuple(sequence.output[again:])), chunk])
        for step in chunks:
            self._worker.tell(self._worker.protocol.role.sampled(step))
        return is_over


class FaultyTransfers:
    """`PageTransfers`. Pages for a worker that is gone are on their way until the router says that it is."""

    total_checksum_failures = 0

    def __init__(self, worker: FaultyWorker) -> None:
        self._worker = worker
        self._others: dict[TransferKey, PeerId] = {}

    @property
    def num_active(self) -> int:
        return len(self._others)

    def knows(self, transfer: TransferKey) -> bool:
        return transfer in self._others

    def expect(self, ticket: HandoffTicket, reservation: Reservation, source: PeerId, source_tp: int) -> None:
        self._others[ticket.key] = source

    def begin(self, ticket: HandoffTicket) -> None:
        self._others[ticket.key] = ticket.destination

    def send(self, ticket: HandoffTicket, page_ids: Seq[int]) -> None:
        self.begin(ticket)
        if self._worker.world.fault_chance() < 0.05:
            self._end_later(0.05, ticket.key, "the link broke")
        else:
            self._worker.later(0.05, lambda: self.deliver(ticket))

    def deliver(self, ticket: HandoffTicket) -> None:
        destination = self._worker.world.workers.get(ticket.destination.name)
        if self.knows(ticket.key) and destination is not None and destination.hello.worker == ticket.destination:
            self._end(ticket.key, None)
            failure = "checksum" if self._worker.world.fault_chance() < 0.08 else None
            destination.transfers._end(ticket.key, failure)

    def cancel(self, transfer: TransferKey) -> None:
        self._end_later(0.1, transfer, "cancelled")

    def peer_lost(self, peer: PeerId) -> None:
        for transfer, other in self._others.items():
            if other == peer:
                self._end_later(0.001, transfer, f"{peer.name} is lost")

    def _end_later(self, about_s: float, transfer: TransferKey, failure: str) -> None:
        self._worker.later(about_s, lambda: self._end(transfer, failure))

    def _end(self, transfer: TransferKey, failure: str | None) -> None:
        if self._others.pop(transfer, None) is not None:
            outcome = TransferOutcome(transfer, failure, 1000, 0.01, is_cancelled=failure == "cancelled")
            self._worker.tell(self._worker.protocol.transfer_ended(outcome, self._worker.world.now))
