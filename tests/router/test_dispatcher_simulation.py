"""The real dispatcher among simulated workers in virtual time, with everything going wrong at random.

Workers die, come back, are drained, lose pages on the way, forget to answer, repeat themselves; connections keep
their own order but not each other's; clients leave at any moment. Whatever happens:

- every request ends exactly once, and its tokens are a prefix of (undisturbed: exactly) the right sequence
- no worker ever gets work that it has no room for, or a message about an attempt that it does not know
- afterwards nothing is left, in the dispatcher or on a worker
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from slipstream.kv_transfer.ticket import HandoffTicket, PeerId
from slipstream.router.actions import Action, Close, Emit, Finish, Send
from slipstream.router.config import DispatchConfig
from slipstream.router.dispatcher import Dispatcher
from slipstream.router.generation import GenerateRequest, QueueFullError
from slipstream.router.messages import (
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
    SamplingParams,
    Start,
    StepOutput,
    TokenChunk,
    WorkerMessage,
    pack_ids,
    unpack_ids,
)
from tests.router.greetings import make_hello

PAGE_TOKENS = 16
FAULTS_END_S = 20.0
CONFIG = DispatchConfig(
    local_prefill_max_tokens=48,
    max_queued_requests=25,
    max_attempts=4,
    queue_timeout_s=30.0,
    request_timeout_s=90.0,
    reserve_timeout_s=0.5,
    ageing_s=2.0,
)
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


class FakeWorker:
    """One incarnation of a worker; `rng` decides how it misbehaves."""

    def __init__(self, world: "World", hello: Hello) -> None:
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


class World:
    """Virtual time, the network, and what clients saw."""

    def __init__(self, seed: int, num_requests: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.num_events = 0
        self.dispatcher = Dispatcher(CONFIG)
        self.workers: dict[str, FakeWorker] = {}
        self.requests: dict[str, GenerateRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        self.finishes: dict[str, Finish] = {}
        self.left: set[str] = set()
        for role, count in (("decode", self.rng.randint(1, 3)), ("prefill", self.rng.randint(1, 2))):
            for number in range(count):
                name = f"{role}-{number}"
                self.after(self.rng.uniform(0, 1), lambda name=name, role=role: self.start(name, role, 1))
        for number in range(num_requests):
            self.after(self.rng.uniform(0, 6), lambda number=number: self.submit(number))

    def fault_chance(self) -> float:
        """A number that means trouble when it is small; never after the faults have ended."""
        return self.rng.random() if self.now < FAULTS_END_S else 1.0

    def at(self, time_s: float, do: Callable[[], None]) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time_s, self.num_events, do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        self.at(self.now + delay_s, do)

    def run(self) -> None:
        steps = 0
        while self.events or self.dispatcher.next_deadline() is not None:
            steps += 1
            assert steps < 200_000, "the world does not come to rest"
            deadline = self.dispatcher.next_deadline()
            if deadline is not None and (not self.events or deadline <= self.events[0][0]):
                self.now = max(self.now, deadline)
                self.perform(self.dispatcher.tick(self.now))
            else:
                self.now, _, do = heapq.heappop(self.events)
                do()
            if steps % 7 == 0:
                self.dispatcher.check_integrity()

    # ---- workers

    def start(self, name: str, role: str, epoch: int) -> None:
        size = self.rng.choice([1, 2])
        hello = make_hello(
            PeerId(name, epoch),
            "decode" if role == "decode" else "prefill",
            page_tokens=PAGE_TOKENS,
            num_pages=40 * size,
            max_slots=4 * size,
            max_queued_tokens=400,
            max_model_len=600,
            model_version=self.version_of(name),
        )
        worker = self.workers[name] = FakeWorker(self, hello)
        self.perform(self.dispatcher.worker_joined(hello, self.now))
        worker.changed()
        if self.now < FAULTS_END_S and self.rng.random() < 0.8:
            end = self.drain if self.rng.random() < 0.4 else self.lose
            self.after(self.rng.uniform(0, 6), lambda: end(worker))

    def version_of(self, name: str) -> str:
        """Of the model, that the next incarnation of a worker serves."""
        return ""

    def drain(self, worker: FakeWorker) -> None:
        if worker.alive:
            self.perform(self.dispatcher.drain(worker.hello.worker, self.now))

    def lose(self, worker: FakeWorker) -> None:
        if not worker.alive:
            return
        worker.alive = False
        hello = worker.hello
        del self.workers[hello.worker.name]
        self.perform(self.dispatcher.worker_lost(hello.worker, self.now))
        self.dispatcher.check_integrity()
        self.after(self.rng.uniform(0, 2), lambda: self.start(hello.worker.name, hello.role, hello.worker.epoch + 1))

    def worker_said(self, worker: FakeWorker, message: WorkerMessage) -> None:
        if worker.alive:
            self.perform(self.dispatcher.worker_message(worker.hello.worker, message, self.now))

    # ---- clients

    def submit(self, number: int) -> None:
        request_id = f"r{number}"
        num_prompt = self.rng.choice([self.rng.randint(1, 48), self.rng.randint(49, 500)])
        request = GenerateRequest(
            request_id,
            pack_ids(range(num_prompt)),
            SamplingParams(max_tokens=self.rng.randint(1, 20)),
            priority=self.rng.randint(-1, 1),
        )
        try:
            actions = self.dispatcher.submit(request, self.now)
        except QueueFullError:
            return
        self.requests[request_id] = request
        self.tokens[request_id] = []
        self.perform(actions)
        if self.rng.random() < 0.2:
            self.after(self.rng.expovariate(2), lambda: self.leave(request_id))

    def leave(self, request_id: str) -> None:
        self.left.add(request_id)
        self.perform(self.dispatcher.cancel(request_id, self.now))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Emit(request_id, token_ids):
                    assert request_id not in self.finishes, "tokens after the end"
                    self.tokens[request_id] += token_ids
                case Finish(request_id):
                    assert request_id not in self.finishes, "a second end"
                    self.finishes[request_id] = action
                case Send(peer, message):
                    worker = self.workers.get(peer.name)
                    assert worker is not None, f"{message} for {peer}, which is gone"
                    assert worker.hello.worker == peer, f"{message} for {peer}, which is gone"
                    delivery_s = max(worker.inbound_free_s, self.now + self.rng.expovariate(200))
                    worker.inbound_free_s = delivery_s
                    self.at(delivery_s, lambda w=worker, m=message: w.hear(m) if w.alive else None)
                case Close():
                    pytest.fail(f"no worker says anything wrong here: {action}")

    def check(self) -> None:
        assert self.finishes.keys() == self.requests.keys()
        for request_id, action in self.finishes.items():
            max_tokens = self.requests[request_id].sampling.max_tokens
            expected, reason = expected_output(request_id, max_tokens)
            tokens, finish = self.tokens[request_id], action.finish
            assert tokens == expected[: len(tokens)]
            assert finish.usage.num_output_tokens == len(tokens)
            if finish.reason == "abort":
                assert request_id in self.left
            elif finish.reason == "error":
                assert finish.error is not None
                # A request that is stuck somewhere would end as request_timeout.
                assert finish.error.kind in ("worker_failed", "queue_timeout"), finish
                record = self.dispatcher.record(request_id)
                assert record is not None
                assert finish.error.kind != "worker_failed" or len(record.decisions) >= CONFIG.max_attempts
            else:
                assert (tokens, finish.reason) == (expected, reason)
        assert self.dispatcher.num_requests == 0
        assert self.dispatcher.next_deadline() is None
        self.dispatcher.check_integrity()
        snapshot = self.dispatcher.snapshot(self.now)
        assert snapshot.queue_depth == {}
        assert len(snapshot.workers) == len(self.workers)
        for status in snapshot.workers:
            worker = self.workers[status.peer.name]
            assert worker.sequences == {}, f"left on {status.peer}"
            assert (status.free_slots, status.free_pages, status.free_tokens) == worker.free
            assert status.num_requests == 0


@pytest.mark.parametrize("block", range(4))
def test_every_request_ends_once_with_its_tokens_whatever_fails(block):
    seen: set[str] = set()
    for seed in range(block * 30, block * 30 + 30):
        world = World(seed, num_requests=30)
        try:
            world.run()
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed} at {world.now:.3f} s: {error}") from error
        totals = world.dispatcher.snapshot(world.now).totals
        seen |= {*totals.placements, *totals.retries, *totals.finishes}
    # The faults did happen: a simulation in which all goes well proves little.
    assert {"long_prompt", "short_prompt", "cached_prefix", "no_prefill_group", "prefill_failed"} <= seen
    assert {"worker_lost", "worker_failed", "reserve_timeout", "stop", "length", "abort"} <= seen


def test_the_same_seed_gives_the_same_history():
    def history(seed: int) -> list[str]:
        world = World(seed, num_requests=20)
        world.run()
        records = [world.dispatcher.record(request_id) for request_id in world.requests]
        return [line for record in records if record is not None for line in record.lines()]

    assert history(5) == history(5)
    assert history(5) != history(6)
