"""The heart of the router: queue, credits, placement, attempts. Sans-IO: events with a time in, actions out.

Every event method returns the actions it causes, in order. Time is float seconds of any clock that never goes back.
The rules are in docs/design.md under "Attempts" and "Credits"; the parts:

    request_book   all unfinished requests: queue, deadlines, the ends of attempts and requests
    roster         the connected workers, each with its `credits` ledger
    prefix         which worker holds the KV of which prefix
    matching       waiting requests + credits -> `placement`
    attempts       a placed request's way, driven by its workers' messages
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import assert_never

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.actions import Action, Close
from slipstream.router.attempts import AttemptFlow
from slipstream.router.config import DispatchConfig
from slipstream.router.generation import EarlyEnd, GenerateRequest, GenerationError
from slipstream.router.history import RequestRecord
from slipstream.router.matching import match_credits
from slipstream.router.messages import (
    BlocksChanged,
    Credits,
    Drain,
    Failed,
    HandedOff,
    Hello,
    PeerLost,
    Pong,
    Reserved,
    ResyncBlocks,
    Stats,
    StepOutput,
    StepTimes,
    WorkerMessage,
)
from slipstream.router.placement.placer import Placer
from slipstream.router.placement.progress import check_load
from slipstream.router.prefix.holder import BlockEventError
from slipstream.router.prefix.index import PrefixIndex
from slipstream.router.prefix.sessions import Sessions
from slipstream.router.request_book import RequestBook
from slipstream.router.roster import Roster, WorkerState
from slipstream.router.status import Snapshot, WorkerStatus


class Dispatcher:
    """`history_capacity` requests, running or finished, can be explained."""

    def __init__(self, config: DispatchConfig, history_capacity: int = 1024) -> None:
        self._roster = Roster()
        self._book = RequestBook(config, history_capacity)
        self._index = PrefixIndex()
        self._sessions = Sessions()
        self._placer = Placer(config, self._roster, self._index, self._sessions, self._book.outputs)
        self._flow = AttemptFlow(self._book, self._placer, self._index, self._sessions)
        self._wake_s: float | None = None  # when somebody has waited long enough for a better worker

    # ---- what can be asked

    @property
    def num_requests(self) -> int:
        """Requests that have not finished."""
        return len(self._book)

    @property
    def has_decode_worker(self) -> bool:
        """A decode worker is connected that takes new work."""
        return bool(self._roster.decode_workers)

    @property
    def max_model_len(self) -> int | None:
        """The longest sequence, prompt and output, that a connected decode worker takes; None: none is connected."""
        return self._roster.max_model_len

    def next_deadline(self) -> float | None:
        """When `tick` is due next; None: nothing is waiting for a time."""
        due_s = self._book.next_deadline()
        if self._wake_s is None or not self._book.queue:
            return due_s
        return self._wake_s if due_s is None else min(due_s, self._wake_s)

    def known_blocks(self, peer: PeerId) -> frozenset[int]:
        """Ids of the blocks that a connected worker has told to hold."""
        worker = self._roster.get(peer)
        assert worker is not None, peer
        return self._index.held_blocks(worker)

    def record(self, request_id: str) -> RequestRecord | None:
        """The story of a request, running or finished a while ago."""
        return self._book.history.get(request_id)

    def records(self) -> Iterator[RequestRecord]:
        """The stories that are kept, the request that came last first."""
        return self._book.history.latest()

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(
            queue_depth=self._book.queue.depth_by_priority,
            num_requests=len(self._book),
            num_requests_by_phase=dict(Counter(state.phase for state in self._book)),
            workers=tuple(WorkerStatus.of(worker, now, self._index.num_held(worker)) for worker in self._roster),
            totals=deepcopy(self._book.totals),
            prefix_index=self._index.status,
            output_forecasts=deepcopy(self._book.outputs.calibration),
        )

    # ---- events: clients and time

    def submit(self, request: GenerateRequest, now: float) -> list[Action]:
        """Queues a request. Raises AdmissionError, and then nothing has happened."""
        self._book.admit(request, self._roster.decode_workers, now)
        return self._settle(now)

    def cancel(self, request_id: str, now: float, reason: EarlyEnd = "abort") -> list[Action]:
        """The client is gone, or has all that it wants. Unknown ids are ignored."""
        state = self._book.get(request_id)
        if state is not None:
            self._book.finish(state, now, reason)
        return self._settle(now)

    def finish_all(self, error: GenerationError, now: float) -> list[Action]:
        """Ends everything: the router is going down."""
        for state in list(self._book):
            self._book.finish(state, now, "error", error=error)
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Call at `next_deadline`; earlier or later does no harm."""
        self._book.expire(now)
        return self._settle(now)

    # ---- events: workers

    def worker_joined(self, hello: Hello, now: float) -> list[Action]:
        """A worker said hello. An earlier connection of the same identity must have been reported lost."""
        worker = WorkerState(hello, now)
        self._roster.add(worker)
        self._index.add(worker)
        self._sessions.add(worker)
        return self._settle(now)

    def worker_lost(self, peer: PeerId, now: float, reason: str = "connection lost") -> list[Action]:
        """A worker's connection is over. Unknown workers are ignored."""
        worker = self._roster.get(peer)
        if worker is not None:
            self._lose(worker, now, reason)
        return self._settle(now)

    def drain(self, peer: PeerId, now: float) -> list[Action]:
        """Gives the worker no new work and tells it to exit when it is done. Unknown workers are ignored."""
        worker = self._roster.get(peer)
        if worker is not None and not worker.draining:
            self._roster.drain(worker)
            self._book.send(worker, Drain())
            # A prefill that only waits for its reservation would be new work.
            for state in self._book.latest_first(worker.request_ids):
                if worker is state.prefill and not state.prefill_sent:
                    self._book.fail_attempt(state, now, "worker_drained", f"{worker.name} is draining")
        return self._settle(now)

    def worker_message(self, peer: PeerId, message: WorkerMessage, now: float) -> list[Action]:
        """A worker said something. Messages of workers that are not connected, and of old attempts, are ignored."""
        worker = self._roster.get(peer)
        if worker is None:
            return []
        match message:
            case StepOutput():
                num_waiting = len(self._book.queue)
                for chunk in message.chunks:
                    self._flow.on_chunk(worker, chunk, now)
                if len(self._book.queue) == num_waiting:
                    return self._take_actions()  # tokens make no room: credits do
            case Credits():
                try:
                    worker.ledger.report(message)
                except ValueError as error:
                    self._expel(worker, now, str(error))
            case Reserved():
                self._flow.on_reserved(worker, message, now)
            case HandedOff():
                self._flow.on_handed_off(worker, message, now)
            case Failed():
                self._flow.on_failed(worker, message, now)
            case BlocksChanged():
                try:
                    is_missing = self._index.apply(worker, message)
                except BlockEventError as error:
                    self._expel(worker, now, str(error))
                else:
                    if is_missing:
                        self._book.send(worker, ResyncBlocks())
            case Stats():
                worker.stats = message
                return []
            case StepTimes():
                for sample in message.samples:
                    worker.times.observe_step(sample)
                return []
            case Pong():
                return []
            case Hello():
                self._expel(worker, now, "said hello twice")
            case _:
                assert_never(message)
        return self._settle(now)

    # ---- what events lead to

    def _settle(self, now: float) -> list[Action]:
        """Places what fits now and hands out the actions."""
        book = self._book
        self._wake_s = None
        if book.queue and self._roster.decode_workers:
            self._index.expire(now)
            self._wake_s = match_credits(book, self._roster, self._placer, self._flow.start, now)
        return self._take_actions()

    def _take_actions(self) -> list[Action]:
        actions, self._book.actions = self._book.actions, []
        return actions

    def _lose(self, worker: WorkerState, now: float, reason: str) -> None:
        self._roster.remove(worker)
        self._index.remove(worker)
        self._sessions.remove(worker)
        for other in self._roster:
            self._book.send(other, PeerLost(worker.peer))
        for state in self._book.latest_first(worker.request_ids):
            self._flow.on_lost(state, worker, now, reason)

    def _expel(self, worker: WorkerState, now: float, reason: str) -> None:
        """Parts with a worker whose words make no sense: its state and ours have drifted apart."""
        self._book.actions.append(Close(worker.peer, reason))
        self._lose(worker, now, reason)

    def check_integrity(self) -> None:
        """Raises AssertionError if two parts of the state contradict each other."""
        self._book.check_integrity()
        self._index.check_integrity()
        for state in self._book:
            for involved in (state.decode, state.prefill):
                assert involved is None or self._roster.get(involved.peer) is involved, state.request_id
        for worker in self._roster:
            worker.ledger.check_integrity()
            states = [self._book[request_id] for request_id in worker.request_ids]
            assert all(worker is state.decode or worker is state.prefill for state in states), worker.name
            held = {s.request_id for s in states if worker is s.prefill and not s.prefill_sent}
            assert worker.ledger.held == held, worker.name
            check_load(worker, states)
