"""A simulated worker that does what workers do, and at times fails, forgets, repeats itself or sends nonsense.

It checks what it is sent: nothing that it has no room for, and no message about an attempt that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.protocol.messages import (
    Adopt,
    Cancel,
    Copied,
    Credits,
    Drain,
    EngineRequest,
    Extend,
    Failed,
    Frozen,
    Generate,
    HandedOff,
    Hello,
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
    unpack_ids,
)

if TYPE_CHECKING:
    from tests.support.router.faulty_world import World

PAGE_TOKENS = 16
Key = tuple[str, int]


def token_at(request_id: str, index: int) -> int:
    return (int(request_id[1:]) * 7919 + index * 31) % 50_021


def natural_end(request_id: str) -> int:
    """The number of tokens after which this request's model would stop by itself."""
    return 1 + int(request_id[1:]) * 13 % 17


def expected_output(request_id: str, max_tokens: int) -> tuple[list[int], str]:
    end = natural_end(request_id)
    reason = "stop" if end <= max_tokens else "length"
    return [token_at(request_id, index) for index in range(min(end, max_tokens))], reason


@dataclass(eq=False)
class Sequence:
    request: EngineRequest
    pages: int
    slots: int
    uncomputed: int = 0
    ticket: HandoffTicket | None = None
    source: PeerId | None = None
    landed: bool = False
    started: bool = False
    closing: bool = False
    is_last: bool = True  # of what comes from another decode worker
    frozen: bool = False
    parked: bool = False  # its next step fell into the time in which it stood still
    output: list[int] = field(default_factory=list)


class FaultyWorker:
    """One incarnation of a worker; `rng` decides how it misbehaves."""

    def __init__(self, world: World, hello: Hello) -> None:
        self.world, self.hello, self.rng = world, hello, world.rng
        self.alive, self.draining = True, False
        self.sequences: dict[Key, Sequence] = {}
        self.seen: set[Key] = set()
        self.cancelled: set[Key] = set()
        self.acked = 0
        self.num_tickets = 0
        self.report_due = False
        self.inbound_free_s = self.outbound_free_s = 0.0

    # ---- capacity

    @property
    def free(self) -> tuple[int, int, int]:
        sequences = self.sequences.values()
        return (
            self.hello.max_slots - sum(s.slots for s in sequences),
            self.hello.num_pages - sum(s.pages for s in sequences),
            self.hello.max_queued_tokens - sum(s.uncomputed for s in sequences),
        )

    def admit(self, seq: int, request: EngineRequest, *, prefill: bool, room: int = 1) -> Sequence:
        assert seq == self.acked + 1, "spending messages are numbered without a gap"
        self.acked = seq
        assert not self.draining, "new work after Drain"
        key = (request.request_id, request.attempt)
        assert key not in self.seen, "an attempt is placed once"
        self.seen.add(key)
        prompt, output = unpack_ids(request.prompt_ids), unpack_ids(request.output_ids)
        assert output == [token_at(request.request_id, i) for i in range(len(output))]
        assert len(output) < request.sampling.max_tokens
        num_tokens = len(prompt) + len(output)
        slots, pages, tokens = self.free
        if prefill:
            need = -(-num_tokens // PAGE_TOKENS)
            assert pages >= need, "pages overspent"
            assert tokens >= min(num_tokens, self.hello.max_queued_tokens), "tokens overspent"
            sequence = Sequence(request, need, 0, num_tokens, output=output)
        else:
            need = -(-(num_tokens + room) // PAGE_TOKENS)
            assert slots >= 1, "slots overspent"
            assert pages >= need, "pages overspent"
            sequence = Sequence(request, need, 1, output=output)
        self.sequences[key] = sequence
        return sequence

    def changed(self) -> None:
        """Credits are reported a little later, several changes at once."""
        if not self.report_due:
            self.report_due = True
            self.later(0.02, self.report)

    def report(self) -> None:
        self.report_due = False
        self.say(Credits(self.acked, *self.free))

    # ---- the world

    def later(self, about_s: float, do: Callable[[], None]) -> None:
        slowness = self.rng.choice([0.1, 0.5, 1, 1, 2, 20])
        self.world.after(slowness * about_s, lambda: do() if self.alive else None)

    def say(self, message: WorkerMessage) -> None:
        self.outbound_free_s = max(self.outbound_free_s, self.world.now + self.rng.expovariate(200))
        self.world.at(self.outbound_free_s, lambda: self.world.worker_said(self, message))

    def remove(self, key: Key) -> None:
        del self.sequences[key]
        self.changed()
        if self.draining and not self.sequences:
            self.later(0.1, lambda: self.world.lose(self))

    # ---- what the router wants

    def hear(self, message: RouterMessage) -> None:
        match message:
            case Generate(seq, request):
                key = (request.request_id, request.attempt)
                if key in self.sequences:
                    assert seq == self.acked + 1
                    self.acked = seq
                    assert not self.sequences[key].closing
                    self.sequences[key].ticket = None
                else:
                    self.admit(seq, request, prefill=False)
                self.sequences[key].landed = self.sequences[key].started = True
                self.later(0.05, lambda: self.decode(key))
            case Reserve(seq, request, source, _):
                sequence = self.admit(seq, request, prefill=False)
                sequence.source = source
                self.later(0.01, lambda: self.reserve(sequence))
            case Prefill(seq, request, ticket):
                self.admit(seq, request, prefill=True).ticket = ticket
                self.later(0.1, lambda: self.prefill((request.request_id, request.attempt)))
            case Start(request_id, attempt, token_ids):
                started = self.sequences.get((request_id, attempt))
                if started is not None and not started.closing:
                    assert not started.started, "Start comes once"
                    started.started = True
                    started.output += token_ids
                    if started.landed:
                        self.later(0.02, lambda: self.decode((request_id, attempt)))
            case Adopt(seq, request, source, _, room):
                sequence = self.admit(seq, request, prefill=False, room=max(room, 1))
                sequence.source, sequence.is_last = source, room > 0
                self.later(0.01, lambda: self.reserve(sequence))
            case Extend(seq, request_id, attempt, token_ids, room):
                assert seq == self.acked + 1
                self.acked = seq
                self.extend((request_id, attempt), token_ids, room)
            case Migrate(request_id, attempt, to_attempt, ticket, freeze):
                self.migrate((request_id, attempt), to_attempt, ticket, freeze)
            case Resume(request_id, attempt):
                self.resume((request_id, attempt))
            case Cancel(request_id, attempt):
                self.cancel((request_id, attempt))
            case PeerLost(peer):
                assert peer != self.hello.worker
                self.peer_lost(peer)
            case Drain():
                self.draining = True
                if not self.sequences:
                    self.later(0.1, lambda: self.world.lose(self))
            case _:
                pytest.fail(f"unexpected {message}")
        self.changed()

    def cancel(self, key: Key) -> None:
        assert key in self.seen, "Cancel for an attempt that never came here"
        assert key not in self.cancelled, "Cancel comes once"
        self.cancelled.add(key)
        sequence = self.sequences.get(key)
        if sequence is None or sequence.closing:
            return
        sequence.closing = True  # a transfer may still touch its pages
        if sequence.slots and sequence.landed:
            self.remove(key)
        else:
            self.later(0.1, lambda: self.remove(key))

    def fail(self, key: Key, reason: str) -> None:
        self.remove(key)
        self.say(Failed(*key, reason, retryable=True))

    def peer_lost(self, peer: PeerId) -> None:
        for key, sequence in list(self.sequences.items()):
            if sequence.closing or sequence.ticket is None:
                continue
            waits_for_it = sequence.source == peer and not sequence.landed
            sends_to_it = sequence.source is None and sequence.ticket.destination == peer
            if waits_for_it or (sends_to_it and not sequence.uncomputed):
                self.fail(key, f"{peer.name} is lost")

    # ---- moves

    def extend(self, key: Key, token_ids: tuple[int, ...], room: int) -> None:
        sequence = self.sequences.get(key)
        if sequence is None or sequence.closing:
            return
        assert not sequence.is_last
        sequence.output += token_ids
        num_tokens = len(sequence.request.prompt_ids) // 4 + len(sequence.output)
        need = max(sequence.pages, -(-(num_tokens + max(room, 1)) // PAGE_TOKENS))
        if self.free[1] < need - sequence.pages:
            self.fail(key, "no pages")
            return
        sequence.pages, sequence.is_last = need, room > 0
        self.later(0.01, lambda: self.reserve(sequence))

    def migrate(self, key: Key, to_attempt: int, ticket: HandoffTicket, freeze: bool) -> None:
        sequence = self.sequences.get(key)
        request_id = key[0]
        if sequence is None or sequence.closing:
            self.say(Failed(request_id, to_attempt, "not here", True))
            return
        assert sequence.landed
        assert sequence.started
        assert not sequence.frozen
        if self.world.fault_chance() < 0.1:
            self.say(Failed(request_id, to_attempt, "outgrown", True))
            return
        if freeze:
            sequence.frozen = True
            self.say(Frozen(*key, len(sequence.output)))
        if self.world.fault_chance() < 0.05:
            self.later(0.05, lambda: self.say(Failed(request_id, to_attempt, "the link broke", True)))
        else:
            self.later(0.05, lambda: self.send_moved((request_id, to_attempt), ticket))

    def send_moved(self, key: Key, ticket: HandoffTicket) -> None:
        destination = self.world.workers.get(ticket.destination.name)
        if destination is not None and destination.hello.worker == ticket.destination:
            destination.pages_arrived(key, ticket)

    def resume(self, key: Key) -> None:
        sequence = self.sequences.get(key)
        if sequence is not None and sequence.frozen:
            sequence.frozen = False
            if sequence.parked:
                sequence.parked = False
                self.later(0.02, lambda: self.decode(key))

    # ---- decode

    def reserve(self, sequence: Sequence) -> None:
        key = (sequence.request.request_id, sequence.request.attempt)
        if sequence.closing:
            return
        chance = self.world.fault_chance()
        if chance < 0.03:
            return  # forgets to answer
        if chance < 0.06:
            self.fail(key, "no pages")
            return
        self.num_tickets += 1
        num_tokens = (len(sequence.request.prompt_ids) + len(sequence.request.output_ids)) // 4
        cached = self.rng.choice([0, 0, 0, (num_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS])
        sequence.ticket = HandoffTicket(
            self.num_tickets, self.hello.worker, self.hello.addresses, 0, sequence.pages, 8, 2, 2, 64
        )
        self.say(Reserved(*key, cached, sequence.ticket))

    def pages_arrived(self, key: Key, ticket: HandoffTicket) -> None:
        sequence = self.sequences.get(key)
        if sequence is None or sequence.closing or sequence.ticket != ticket:
            return
        if self.world.fault_chance() < 0.08:
            self.fail(key, "checksum")
            return
        if not sequence.is_last:
            self.say(Copied(*key, ticket.transfer_id, 1000, 0.01))
            return
        sequence.landed = True
        self.say(HandedOff(*key, 1000, 0.01))
        if sequence.started:
            self.later(0.02, lambda: self.decode(key))

    def decode(self, key: Key) -> None:
        sequence = self.sequences.get(key)
        if sequence is None or sequence.closing:
            return
        if sequence.frozen:
            sequence.parked = True
            return
        if self.world.fault_chance() < 0.01:
            self.fail(key, "out of memory")
            return
        finished = self.produce(key, sequence, self.rng.randint(1, 4))
        if finished:
            self.remove(key)
        else:
            self.later(0.03, lambda: self.decode(key))

    # ---- prefill

    def prefill(self, key: Key) -> None:
        sequence = self.sequences.get(key)
        if sequence is None or sequence.closing:
            return
        if self.world.fault_chance() < 0.03:
            self.fail(key, "out of memory")
            return
        sequence.uncomputed = 0
        self.changed()
        self.produce(key, sequence, 1)
        self.later(0.05, lambda: self.send_pages(key))

    def send_pages(self, key: Key) -> None:
        sequence = self.sequences.get(key)
        if sequence is None or sequence.closing:
            return
        assert sequence.ticket is not None
        destination = self.world.workers.get(sequence.ticket.destination.name)
        if destination is None or destination.hello.worker != sequence.ticket.destination:
            return  # until the router says so
        self.remove(key)
        destination.pages_arrived(key, sequence.ticket)

    def produce(self, key: Key, sequence: Sequence, count: int) -> bool:
        """Says the next tokens, now and then some of them again. True: the sequence is over."""
        request_id, attempt = key
        expected, reason = expected_output(request_id, sequence.request.sampling.max_tokens)
        start = len(sequence.output)
        assert sequence.output == expected[:start]
        tokens = expected[start : start + count]
        sequence.output += tokens
        finished = len(sequence.output) == len(expected)
        chunk = TokenChunk(request_id, attempt, start, tuple(tokens), (), reason if finished else None)
        self.say(StepOutput((chunk,)))
        if self.rng.random() < 0.1:
            again = max(start - 2, len(sequence.request.output_ids) // 4)
            repeated = TokenChunk(request_id, attempt, again, tuple(sequence.output[again:]))
            self.say(StepOutput((repeated, chunk)))
        return finished
