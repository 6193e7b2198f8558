"""The real dispatcher among faulty workers and clients that leave, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Action, Close, Emit, Finish, Send
from slipstream.router.protocol.generation import GenerateRequest, QueueFullError
from slipstream.router.protocol.messages import (
    SamplingParams,
    WorkerMessage,
    pack_ids,
)
from tests.support.router.faulty_engine import PAGE_TOKENS, expected_output
from tests.support.router.faulty_worker import FaultyWorker
from tests.support.router.greetings import make_hello

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


class World:
    """Virtual time, the network, and what clients saw."""

    def __init__(self, seed: int, num_requests: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.num_events = 0
        self.dispatcher = Dispatcher(CONFIG)
        self.workers: dict[str, FaultyWorker] = {}
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
        worker = self.workers[name] = FaultyWorker(self, hello)
        self.perform(self.dispatcher.worker_joined(hello, self.now))
        worker.changed()
        if self.now < FAULTS_END_S and self.rng.random() < 0.8:
            end = self.drain if self.rng.random() < 0.4 else self.lose
            self.after(self.rng.uniform(0, 6), lambda: end(worker))

    def version_of(self, name: str) -> str:
        """Of the model, that the next incarnation of a worker serves."""
        return ""

    def drain(self, worker: FaultyWorker) -> None:
        if worker.alive:
            self.perform(self.dispatcher.drain(worker.hello.worker, self.now))

    def lose(self, worker: FaultyWorker) -> None:
        if not worker.alive:
            return
        worker.alive = False
        hello = worker.hello
        del self.workers[hello.worker.name]
        self.perform(self.dispatcher.worker_lost(hello.worker, self.now))
        self.dispatcher.check_integrity()
        self.after(self.rng.uniform(0, 2), lambda: self.start(hello.worker.name, hello.role, hello.worker.epoch + 1))

    def worker_said(self, worker: FaultyWorker, message: WorkerMessage) -> None:
        if worker.alive:
            self.perform(self.dispatcher.worker_message(worker.hello.worker, message, self.now))

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
                record = self.dispatcher.history.get(request_id)
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
            assert worker.engine.sequences == {}, f"left on {status.peer}"
            assert worker.protocol.is_quiet, f"left on {status.peer}"
            assert (status.free_slots, status.free_pages, status.free_tokens) == worker.free
            assert status.num_requests == 0
