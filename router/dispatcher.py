"""The heart of the router: queue, credits, placement, attempts. Sans-IO: events with a time in, actions out.

Every event method returns the actions it causes, in order. Time is float seconds of any clock that never goes back.
The flow of a request is drawn in `request_state`, its rules are in docs/design.md under "Attempts and credits".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from typing import assert_never

from slipstream.kv_transfer.ticket import PeerId
from slipstream.router.actions import Action, Close, Emit, Finish, Send
from slipstream.router.config import DispatchConfig
from slipstream.router.credits import Charge
from slipstream.router.deadlines import DeadlineRing
from slipstream.router.generation import (
    AdmissionError,
    GenerateRequest,
    GenerationError,
    GenerationFinish,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
)
from slipstream.router.history import History, RequestRecord, Timeline
from slipstream.router.messages import (
    Cancel,
    Credits,
    Drain,
    Failed,
    FinishReason,
    Generate,
    HandedOff,
    Hello,
    PeerLost,
    Pong,
    Prefill,
    Reserve,
    Reserved,
    Start,
    Stats,
    StepOutput,
    TokenChunk,
    WorkerMessage,
)
from slipstream.router.output_log import OutputError, OutputLog
from slipstream.router.placement import (
    Placement,
    Wait,
    cached_prefix_decision,
    decode_charge,
    place,
    prefill_charge,
    refusal,
)
from slipstream.router.queue import WorkQueue
from slipstream.router.request_state import RequestState
from slipstream.router.roster import Roster, WorkerState
from slipstream.router.status import Outcome, PlacementPace, RetryCause, Snapshot, Totals, WorkerStatus

# So many requests may overtake one that does not fit and would want what they take; then it is its turn.
MAX_PASSED = 32
# So many waiting requests that do not fit are looked past for one that does, which bounds the work of an event.
LOOKAHEAD = 32


class Dispatcher:
    """`history_capacity` requests, running or finished, can be explained."""

    def __init__(self, config: DispatchConfig, history_capacity: int = 1024) -> None:
        self._config = config
        self._roster = Roster()
        self._queue = WorkQueue(config.ageing_s)
        self._requests: dict[str, RequestState] = {}
        self._queue_deadlines = DeadlineRing(config.queue_timeout_s)
        self._reserve_deadlines = DeadlineRing(config.reserve_timeout_s)
        self._request_deadlines = DeadlineRing(config.request_timeout_s)
        self._history = History(history_capacity)
        self._totals = Totals()
        self._pace = PlacementPace()
        self._actions: list[Action] = []

    # ---- what can be asked

    @property
    def num_requests(self) -> int:
        """Requests that have not finished."""
        return len(self._requests)

    def next_deadline(self) -> float | None:
        """When `tick` is due next; None: nothing is waiting for a time."""
        rings = (self._queue_deadlines, self._reserve_deadlines, self._request_deadlines)
        return min((ring.first for ring in rings if ring.first is not None), default=None)

    def record(self, request_id: str) -> RequestRecord | None:
        """The story of a request, running or finished a while ago."""
        return self._history.get(request_id)

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(
            queue_depth=self._queue.depth_by_priority,
            num_requests=len(self._requests),
            num_requests_by_phase=dict(Counter(state.phase for state in self._requests.values())),
            workers=tuple(
                WorkerStatus(
                    peer=worker.peer,
                    role=worker.hello.role,
                    tp=worker.hello.tp,
                    pid=worker.hello.pid,
                    draining=worker.draining,
                    connected_s=now - worker.joined_s,
                    num_requests=len(worker.request_ids),
                    num_pages=worker.hello.num_pages,
                    max_slots=worker.hello.max_slots,
                    free_slots=worker.ledger.free_slots,
                    free_pages=worker.ledger.free_pages,
                    free_tokens=worker.ledger.free_tokens,
                    stats=worker.stats,
                )
                for worker in self._roster
            ),
            totals=deepcopy(self._totals),
        )

    # ---- events: clients and time

    def submit(self, request: GenerateRequest, now: float) -> list[Action]:
        """Queues a request. Raises AdmissionError, and then nothing has happened."""
        try:
            prompt_ids = self._admit(request, now)
        except AdmissionError as error:
            self._totals.rejections[error.error.kind] += 1
            raise
        num_prompt_tokens = len(prompt_ids) // 4
        record = RequestRecord(request.request_id, request.tenant, request.priority, num_prompt_tokens, Timeline(now))
        state = RequestState(request, prompt_ids, OutputLog(request.sampling.max_tokens), record)
        self._requests[state.request_id] = state
        self._history.add(record)
        self._totals.num_prompt_tokens += num_prompt_tokens
        self._request_deadlines.set(state.request_id, now)
        self._queue_deadlines.set(state.request_id, now)
        self._queue.push(state)
        state.enter("queued", now)
        return self._settle(now)

    def cancel(self, request_id: str, now: float) -> list[Action]:
        """The client is gone. Unknown ids are ignored."""
        state = self._requests.get(request_id)
        if state is not None:
            self._finish(state, now, "abort")
        return self._settle(now)

    def finish_all(self, error: GenerationError, now: float) -> list[Action]:
        """Ends everything: the router is going down."""
        for state in list(self._requests.values()):
            self._finish(state, now, "error", error=error)
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Call at `next_deadline`; earlier or later does no harm."""
        for request_id in self._request_deadlines.pop_due(now):
            message = f"not finished within {self._config.request_timeout_s:g} s"
            self._finish(self._requests[request_id], now, "error", error=GenerationError("request_timeout", message))
        for request_id in self._queue_deadlines.pop_due(now):
            message = f"no worker had room within {self._config.queue_timeout_s:g} s"
            retry_after_s = self._pace.retry_after_s(len(self._queue), now)
            error = GenerationError("queue_timeout", message, retry_after_s)
            self._finish(self._requests[request_id], now, "error", error=error)
        for request_id in self._reserve_deadlines.pop_due(now):
            state = self._requests[request_id]
            assert state.decode is not None
            detail = f"{state.decode.name} did not reserve within {self._config.reserve_timeout_s:g} s"
            self._fail_attempt(state, now, "reserve_timeout", detail, blamed=[state.decode])
        return self._settle(now)

    # ---- events: workers

    def worker_joined(self, hello: Hello, now: float) -> list[Action]:
        """A worker said hello. An earlier connection of the same identity must have been reported lost."""
        self._roster.add(WorkerState(hello, now))
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
            self._actions.append(Send(peer, Drain()))
            # A prefill that only waits for its reservation would be new work.
            for state in self._latest_first(worker.request_ids):
                if worker is state.prefill and not state.prefill_sent:
                    self._fail_attempt(state, now, "worker_drained", f"{worker.name} is draining")
        return self._settle(now)

    def worker_message(self, peer: PeerId, message: WorkerMessage, now: float) -> list[Action]:
        """A worker said something. Messages of workers that are not connected, and of old attempts, are ignored."""
        worker = self._roster.get(peer)
        if worker is None:
            return []
        match message:
            case StepOutput():
                for chunk in message.chunks:
                    self._on_chunk(worker, chunk, now)
            case Credits():
                try:
                    worker.ledger.report(message)
                except ValueError as error:
                    self._expel(worker, now, str(error))
            case Reserved():
                self._on_reserved(worker, message, now)
            case HandedOff():
                self._on_handed_off(worker, message, now)
            case Failed():
                self._on_failed(worker, message, now)
            case Stats():
                worker.stats = message
                return []
            case Pong():
                return []
            case Hello():
                self._expel(worker, now, "said hello twice")
            case _:
                assert_never(message)
        return self._settle(now)

    def _current(self, worker: WorkerState, message: Reserved | TokenChunk | HandedOff | Failed) -> RequestState | None:
        """The request that a message is about, if it is of the current attempt and the worker has a part in it."""
        state = self._requests.get(message.request_id)
        if state is None or state.attempt != message.attempt:
            return None
        if worker is state.decode or (worker is state.prefill and state.prefill_sent):
            return state
        return None

    def _on_reserved(self, worker: WorkerState, message: Reserved, now: float) -> None:
        state = self._current(worker, message)
        if state is None or state.phase != "placed" or worker is not state.decode:
            return
        group = state.prefill
        assert group is not None
        self._reserve_deadlines.drop(state.request_id)
        charge = group.ledger.release(state.request_id)
        assert charge is not None
        state.enter("reserved", now, f"{message.num_cached_tokens} tokens cached")
        if state.num_tokens - message.num_cached_tokens <= self._config.local_prefill_max_tokens:
            group.request_ids.discard(state.request_id)
            state.prefill = None
            decision = cached_prefix_decision(worker, state.num_tokens, message.num_cached_tokens)
            state.record.decisions.append(decision)
            self._totals.placements[decision.reason] += 1
            # The reservation has been charged; converting it takes nothing more.
            seq = worker.ledger.spend(Charge())
            self._actions.append(Send(worker.peer, Generate(seq, state.engine_request())))
            state.enter("prefill", now, decision.why)
        else:
            seq = group.ledger.spend(charge)
            state.prefill_sent = True
            self._actions.append(Send(group.peer, Prefill(seq, state.engine_request(), message.ticket)))
            state.enter("prefill", now, f"on {group.name}")

    def _on_chunk(self, worker: WorkerState, chunk: TokenChunk, now: float) -> None:
        state = self._current(worker, chunk)
        if state is None:
            return
        if chunk.finish_reason == "error" or chunk.finish_reason == "abort":
            detail = f"{worker.name} ended the sequence with {chunk.finish_reason}"
            self._fail_attempt(state, now, "worker_failed", detail, blamed=[worker], silent=worker)
            return
        try:
            ready = state.output.add(chunk)
        except OutputError as error:
            self._fail_attempt(state, now, "bad_output", f"{worker.name}: {error}", blamed=[worker])
            return
        for part in ready:
            if part.token_ids:
                if state.num_cached_tokens is None:
                    state.num_cached_tokens = part.num_cached_tokens
                self._totals.num_output_tokens += len(part.token_ids)
                self._actions.append(Emit(state.request_id, part.token_ids, part.logprobs))
            if part.finish_reason is not None or state.output.is_full:
                state.record.timeline.mark("first_token", now)
                silent = worker if chunk.finish_reason is not None else None
                reason = part.finish_reason or "length"
                self._finish(state, now, reason, silent=silent, stop_token_id=part.stop_token_id)
                return
        if worker is state.prefill:
            self._on_first_token(state, chunk, now)
        elif ready and state.phase != "decode":
            self._on_decoding(state, now)

    def _on_first_token(self, state: RequestState, chunk: TokenChunk, now: float) -> None:
        """The prefill group has sampled: the client has its token, and the decode worker may go on from it."""
        if state.phase != "prefill" or not chunk.token_ids:
            return
        assert state.decode is not None
        assert state.prefill is not None
        if chunk.index + len(chunk.token_ids) != len(state.output):
            detail = f"{state.prefill.name} sent token {chunk.index} first, not {len(state.output)}"
            self._fail_attempt(state, now, "bad_output", detail, blamed=[state.prefill])
            return
        state.record.note("first_token", now, state.attempt)
        self._actions.append(Send(state.decode.peer, Start(state.request_id, state.attempt, chunk.token_ids)))
        state.enter("transfer", now)
        if state.handed_off:
            self._on_decoding(state, now)

    def _on_decoding(self, state: RequestState, now: float) -> None:
        """The decode worker has all it needs; the prefill group has no part in the request any more."""
        if state.phase == "prefill":
            state.record.note("first_token", now, state.attempt)
        if state.prefill is not None:
            state.prefill.request_ids.discard(state.request_id)
            state.prefill = None
        state.enter("decode", now)

    def _on_handed_off(self, worker: WorkerState, message: HandedOff, now: float) -> None:
        state = self._current(worker, message)
        if state is None or worker is not state.decode or state.handed_off:
            return
        state.handed_off = True
        self._totals.num_transfers += 1
        self._totals.transfer_bytes += message.num_bytes
        self._totals.transfer_s += message.seconds
        if state.phase == "transfer":
            self._on_decoding(state, now)

    def _on_failed(self, worker: WorkerState, message: Failed, now: float) -> None:
        state = self._current(worker, message)
        if state is None:
            return
        if not message.retryable:
            error = GenerationError("invalid_request", message.reason)
            self._finish(state, now, "error", error=error, silent=worker)
            return
        # A transfer has two ends, and either may be the broken one.
        blamed = [worker, state.prefill] if state.prefill is not None and state.prefill_sent else [worker]
        self._fail_attempt(
            state, now, "worker_failed", f"{worker.name}: {message.reason}", blamed=blamed, silent=worker
        )

    # ---- what events lead to

    def _admit(self, request: GenerateRequest, now: float) -> bytes:
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        if request.sampling.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, got {request.sampling.max_tokens}")
        try:
            prompt_ids = request.packed_prompt()
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidRequestError(f"the prompt is not a list of token ids: {error}") from error
        if not prompt_ids:
            raise InvalidRequestError("the prompt is empty")
        refused = refusal(len(prompt_ids) // 4, self._roster.decode_workers)
        if refused is not None:
            raise PromptTooLongError(refused)
        if len(self._queue) >= self._config.max_queued_requests:
            raise QueueFullError(len(self._queue), self._pace.retry_after_s(len(self._queue), now))
        return prompt_ids

    def _settle(self, now: float) -> list[Action]:
        """Places what fits now and hands out the actions."""
        if self._queue and self._roster.decode_workers:
            self._match(now)
        actions, self._actions = self._actions, []
        return actions

    def _match(self, now: float) -> None:
        """Places waiting requests in order. One that does not fit is passed by others, but not for ever.

        A request that lacks decode credits is harmed by everybody who passes, one that lacks prefill credits only by
        those who take some of these.
        """
        passed: list[tuple[RequestState, Wait]] = []
        prefill_closed = False
        position = 0
        while position < len(self._queue) and len(passed) <= LOOKAHEAD:
            if not any(w.ledger.free_slots > 0 and w.ledger.free_pages > 0 for w in self._roster.decode_workers):
                return
            state = self._queue[position]
            found = place(
                state.num_tokens,
                state.failed_on,
                self._roster.decode_workers,
                self._roster.prefill_groups,
                self._config.local_prefill_max_tokens,
            )
            if isinstance(found, Placement) and found.prefill is not None and prefill_closed:
                found = Wait("prefill")
            if isinstance(found, Placement):
                self._start(state, found, now)
                for other, wait in passed:
                    if wait.lacks == "decode" or found.prefill is not None:
                        other.num_passed += 1
            elif found.lacks == "worker":
                message = refusal(state.num_tokens, self._roster.decode_workers)
                assert message is not None
                self._finish(state, now, "error", error=GenerationError("prompt_too_long", message))
            else:
                passed.append((state, found))
                position += 1
            exhausted = {wait.lacks for other, wait in passed if other.num_passed >= MAX_PASSED}
            if "decode" in exhausted:
                return
            prefill_closed = "prefill" in exhausted

    def _start(self, state: RequestState, placement: Placement, now: float) -> None:
        """Begins an attempt: the first message that spends credits."""
        request_id = state.request_id
        decode, group = placement.decode, placement.prefill
        self._queue.remove(request_id)
        self._queue_deadlines.drop(request_id)
        self._pace.note(now)
        self._totals.placements[placement.decision.reason] += 1
        state.record.decisions.append(placement.decision)
        state.enter("placed", now, placement.decision.why)
        state.decode = decode
        decode.request_ids.add(request_id)
        seq = decode.ledger.spend(decode_charge(decode, state.num_tokens))
        if group is None:
            self._actions.append(Send(decode.peer, Generate(seq, state.engine_request())))
            state.enter("prefill", now)
            return
        state.prefill = group
        group.request_ids.add(request_id)
        group.ledger.hold(request_id, prefill_charge(group, state.num_tokens))
        self._reserve_deadlines.set(request_id, now)
        reserve = Reserve(seq, state.engine_request(), group.peer, group.hello.tp)
        self._actions.append(Send(decode.peer, reserve))

    def _fail_attempt(
        self,
        state: RequestState,
        now: float,
        cause: RetryCause,
        detail: str,
        blamed: Iterable[WorkerState] = (),
        silent: WorkerState | None = None,
    ) -> None:
        """Ends an attempt everywhere; the request goes back to the queue with its tokens so far, or ends too."""
        if state.attempt + 1 >= self._config.max_attempts:
            message = f"attempt {state.attempt + 1} of {self._config.max_attempts} failed: {detail}"
            self._finish(state, now, "error", error=GenerationError("worker_failed", message), silent=silent)
            return
        self._leave_workers(state, silent)
        state.failed_on.update(worker.peer for worker in blamed)
        self._totals.retries[cause] += 1
        state.begin_next_attempt()
        state.enter("queued", now, detail)
        self._queue.push_front(state)
        self._queue_deadlines.set(state.request_id, now)

    def _finish(
        self,
        state: RequestState,
        now: float,
        reason: FinishReason,
        *,
        error: GenerationError | None = None,
        silent: WorkerState | None = None,
        stop_token_id: int | None = None,
    ) -> None:
        """The only place where a request ends. `silent` has no part in it any more and is told nothing."""
        request_id = state.request_id
        self._leave_workers(state, silent)
        if request_id in self._queue:
            self._queue.remove(request_id)
        self._queue_deadlines.drop(request_id)
        self._request_deadlines.drop(request_id)
        del self._requests[request_id]
        finish = GenerationFinish(reason, state.usage, stop_token_id, error)
        state.record.finish = finish
        state.enter("finished", now, f"{error.kind}: {error.message}" if error is not None else reason)
        self._totals.finishes[_outcome(finish)] += 1
        self._actions.append(Finish(request_id, finish))

    def _leave_workers(self, state: RequestState, silent: WorkerState | None) -> None:
        """Takes the request off its workers and tells those who know of it, except `silent`."""
        request_id = state.request_id
        self._reserve_deadlines.drop(request_id)
        involved = []
        if state.decode is not None:
            involved.append(state.decode)
            state.decode.request_ids.discard(request_id)
        if state.prefill is not None:
            if state.prefill_sent:
                involved.append(state.prefill)
            state.prefill.request_ids.discard(request_id)
            state.prefill.ledger.release(request_id)
        for worker in involved:
            if worker is not silent:
                self._actions.append(Send(worker.peer, Cancel(request_id, state.attempt)))
        state.decode = state.prefill = None

    def _lose(self, worker: WorkerState, now: float, reason: str) -> None:
        self._roster.remove(worker)
        for other in self._roster:
            self._actions.append(Send(other.peer, PeerLost(worker.peer)))
        for state in self._latest_first(worker.request_ids):
            if worker is state.prefill and state.has_first_token:
                # Either the decode worker has all pages already, or it will say Failed.
                state.prefill = None
            else:
                detail = f"{worker.name} is lost: {reason}"
                self._fail_attempt(state, now, "worker_lost", detail, silent=worker)

    def _expel(self, worker: WorkerState, now: float, reason: str) -> None:
        """Parts with a worker whose words make no sense: its state and ours have drifted apart."""
        self._actions.append(Close(worker.peer, reason))
        self._lose(worker, now, reason)

    def _latest_first(self, request_ids: Iterable[str]) -> list[RequestState]:
        """In this order requests are pushed to the front of the queue, so that the earliest ends up first."""
        states = [self._requests[request_id] for request_id in request_ids]
        return sorted(states, key=lambda state: state.record.timeline.queued, reverse=True)

    def check_integrity(self) -> None:
        """Raises AssertionError if two parts of the state contradict each other."""
        for request_id, state in self._requests.items():
            queued = state.phase == "queued"
            assert queued == (state.decode is None) == (request_id in self._queue), request_id
            assert queued == (request_id in self._queue_deadlines), request_id
            assert (state.phase == "placed") == (request_id in self._reserve_deadlines), request_id
            assert state.prefill is None or state.decode is not None, request_id
            for worker in (state.decode, state.prefill):
                assert worker is None or request_id in worker.request_ids, request_id
                assert worker is None or self._roster.get(worker.peer) is worker, request_id
        num_queued = sum(state.phase == "queued" for state in self._requests.values())
        num_placed = sum(state.phase == "placed" for state in self._requests.values())
        assert len(self._queue) == len(self._queue_deadlines) == num_queued
        assert len(self._reserve_deadlines) == num_placed
        assert len(self._request_deadlines) == len(self._requests)
        for worker in self._roster:
            worker.ledger.check_integrity()
            waiting = set()
            for request_id in worker.request_ids:
                state = self._requests[request_id]
                assert worker is state.decode or worker is state.prefill, request_id
                if worker is state.prefill and not state.prefill_sent:
                    waiting.add(request_id)
            assert worker.ledger.held == waiting, worker.name


def _outcome(finish: GenerationFinish) -> Outcome:
    if finish.error is not None:
        return finish.error.kind
    assert finish.reason != "error"
    return finish.reason
