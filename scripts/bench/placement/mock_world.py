"""The real dispatcher and mock workers in virtual time: nothing waits, and the same input gives the same output."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Action, Emit, Finish, Send
from slipstream.router.protocol.generation import AdmissionError, GenerateRequest
from slipstream.router.protocol.messages import (
    Credits,
    Generate,
    Hello,
    Prefill,
    Reserve,
    Role,
    RouterMessage,
    StepOutput,
    WorkerMessage,
)
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_worker import MockWorker
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

MODEL = "mock"
NETWORK_S = 2e-4  # one way


@dataclass(slots=True)
class Outcome:
    """What a client saw of one request. Gaps are between tokens that came."""

    arrived_s: float
    num_prompt: int
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0
    gaps_s: array[float] = field(default_factory=lambda: array("f"))
    reason: str = ""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrived_s

    @property
    def itl_s(self) -> float:
        """The mean gap."""
        return (
            0.0 if self.first_s is None or self.num_tokens < 2 else (self.last_s - self.first_s) / (self.num_tokens - 1)
        )

    def meets(self, ttft_s: float, itl_s: float) -> bool:
        first = self.ttft_s
        return self.reason in ("stop", "length") and first is not None and first <= ttft_s and self.itl_s <= itl_s


@dataclass(slots=True, eq=False)
class _Worker:
    hello: Hello
    mock: MockWorker
    wakes_s: float | None = None


@dataclass(slots=True)
class World:
    """Time and the network between clients, dispatcher and workers."""

    dispatcher: Dispatcher
    now_s: float = 0.0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    workers: dict[PeerId, _Worker] = field(default_factory=dict)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _num_events: int = 0
    _lengths: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, config: DispatchConfig, profiles: Sequence[tuple[Role, MockProfile]]) -> World:
        world = cls(Dispatcher(config))
        for number, (role, profile) in enumerate(profiles):
            world._join(f"{role}-{number}", role, profile)
        return world

    def submit_at(self, request: GenerateRequest, at_s: float, output_length: int) -> None:
        """`output_length` is where the model will stop by itself; the router does not know it."""
        self._lengths[request.request_id] = output_length
        self._at(at_s, lambda: self._submit(request))

    def run(self, until_s: float = float("inf")) -> None:
        """Till nothing is left to happen."""
        events, dispatcher = self._events, self.dispatcher
        while events:
            due_s = dispatcher.next_deadline()
            if due_s is not None and due_s < events[0][0]:
                self.now_s = max(self.now_s, due_s)
                self._perform(dispatcher.tick(self.now_s))
                continue
            if events[0][0] > until_s:
                return
            self.now_s, _, do = heapq.heappop(events)
            do()

    def _submit(self, request: GenerateRequest) -> None:
        num_prompt = len(request.prompt_ids) // 4
        outcome = self.outcomes[request.request_id] = Outcome(self.now_s, num_prompt)
        try:
            self._perform(self.dispatcher.submit(request, self.now_s))
        except AdmissionError as error:
            outcome.reason = error.error.kind

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Emit(request_id, token_ids):
                    outcome = self.outcomes[request_id]
                    if outcome.first_s is None:
                        outcome.first_s = self.now_s
                    else:
                        outcome.gaps_s.append(self.now_s - outcome.last_s)
                    outcome.last_s = self.now_s
                    outcome.num_tokens += len(token_ids)
                case Finish(request_id, finish):
                    self.outcomes[request_id].reason = finish.error.kind if finish.error else finish.reason
                case Send(peer, message):
                    self._at(self.now_s + NETWORK_S, lambda w=self.workers[peer], m=message: self._hear(w, m))
                case _:
                    raise AssertionError(f"{action} is for workers that misbehave")

    def _join(self, name: str, role: Role, profile: MockProfile) -> None:
        peer, address = PeerId(name, 1), TransferAddress("127.0.0.1", 1)
        mock = MockWorker(profile, role, TicketIssuer(peer, (address,), 8, 32, 8, 4096), MODEL)
        hello = profile.hello(peer, role, MODEL, address)
        worker = self.workers[peer] = _Worker(hello, mock)
        self._perform(self.dispatcher.worker_joined(hello, self.now_s))
        self._tell(worker, [])

    def _hear(self, worker: _Worker, message: RouterMessage) -> None:
        if isinstance(message, Generate | Reserve | Prefill):
            asked = message.request
            sampling = asked.sampling._replace(max_tokens=self._lengths[asked.request_id])
            message = message._replace(request=asked._replace(sampling=sampling))
        self._tell(worker, worker.mock.handle(message, self.now_s))

    def _wake(self, worker: _Worker, due_s: float) -> None:
        if worker.wakes_s == due_s:
            worker.wakes_s = None
            self._tell(worker, worker.mock.advance(self.now_s))

    def _tell(self, worker: _Worker, messages: Sequence[WorkerMessage]) -> None:
        reports = worker.mock.reports(self.now_s)
        reports.sort(key=lambda message: not isinstance(message, Credits))  # they come first, as from a real worker
        out = [*messages, *reports]
        if out:
            self._at(self.now_s + NETWORK_S, lambda: self._deliver(worker, out))
        due_s = worker.mock.next_deadline_s()
        if due_s is not None and (worker.wakes_s is None or due_s < worker.wakes_s):
            worker.wakes_s = max(due_s, self.now_s)
            self._at(worker.wakes_s, lambda at_s=worker.wakes_s: self._wake(worker, at_s))

    def _deliver(self, worker: _Worker, messages: Sequence[WorkerMessage]) -> None:
        for message in messages:
            if isinstance(message, StepOutput) and any(chunk.finish_reason for chunk in message.chunks):
                message = StepOutput(
                    tuple(c._replace(finish_reason="stop") if c.finish_reason else c for c in message.chunks)
                )
            self._perform(self.dispatcher.worker_message(worker.hello.worker, message, self.now_s))

    def _at(self, time_s: float, do: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_s, self._num_events, do))
