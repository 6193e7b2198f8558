"""All requests that have not finished: the queue, their deadlines, and the two ways out of an attempt.

A request is either waiting (in the queue, with a queue deadline, on no worker) or placed (on a decode worker). It
leaves through `finish`, once; `fail_attempt` brings it back to the queue as long as attempts are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from slipstream.router.actions import Action, Finish, Send
from slipstream.router.admission import check_admission
from slipstream.router.config import DispatchConfig
from slipstream.router.deadlines import DeadlineRing, Deadlines
from slipstream.router.generation import (
    AdmissionError,
    GenerateRequest,
    GenerationError,
    GenerationFinish,
    InvalidRequestError,
    PromptTooLongError,
)
from slipstream.router.history import History, RequestRecord, Timeline
from slipstream.router.messages import Cancel, FinishReason, RouterMessage
from slipstream.router.move import MoveResult
from slipstream.router.output_log import OutputLog
from slipstream.router.pace import UNKNOWN_INTERVAL_S, PlacementPace
from slipstream.router.placement import progress
from slipstream.router.placement.capacity import refusal
from slipstream.router.placement.output_length import OutputLengths, prescribed
from slipstream.router.prefix.index import PrefixIndex
from slipstream.router.queue import priority_class
from slipstream.router.request_signals import RequestSignals
from slipstream.router.request_state import RequestState
from slipstream.router.roster import WorkerState
from slipstream.router.status import RetryCause, Totals
from slipstream.router.version_lanes import VersionLanes
from slipstream.router.versions import Versions

# Credits may promise too much now and then. A worker that refuses what it has just promised again and again counts
# pages in another way than the router, and trying on would go round in a circle as fast as the network allows.
MAX_REFUSALS = 64


class RequestBook:
    """`actions` collects what is to be done, in order, until the dispatcher hands it out."""

    def __init__(self, config: DispatchConfig, history_capacity: int, versions: Versions, index: PrefixIndex) -> None:
        self._config = config
        self._index = index
        self._versions = versions
        self._requests: dict[str, RequestState] = {}
        self.get: Callable[[str], RequestState | None] = self._requests.get  # asked with every token
        self._queue_deadlines = DeadlineRing(config.queue_timeout_s)
        self._request_deadlines = Deadlines()
        self.reserve_deadlines = DeadlineRing(config.reserve_timeout_s)
        self.move_deadlines = Deadlines()
        self.queue = VersionLanes(config.ageing_s, config.slo.ttft_ms / 1e3)
        self.history = History(history_capacity)
        self.totals = Totals()
        self.pace = PlacementPace()
        self.outputs = OutputLengths()
        self.signals = RequestSignals(config.slo)
        self.actions: list[Action] = []

    def follow(self, config: DispatchConfig) -> None:
        """Other limits and levels for what comes from now on."""
        self._config = config
        self.queue.set_default_ttft(config.slo.ttft_ms / 1e3)
        self.signals.follow(config.slo)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._requests.values())

    def __getitem__(self, request_id: str) -> RequestState:
        return self._requests[request_id]

    def next_deadline(self) -> float | None:
        first = None  # a plain loop: this is asked after every message
        for ring in (self._queue_deadlines, self.reserve_deadlines, self._request_deadlines, self.move_deadlines):
            due = ring.first
            if due is not None and (first is None or due < first):
                first = due
        return first

    def latest_first(self, request_ids: Iterable[str]) -> list[RequestState]:
        """In this order requests are pushed to the front of the queue, so that the earliest ends up first. Of those
        that came at the same time it is always the same one."""
        states = [self._requests[request_id] for request_id in request_ids]
        return sorted(states, key=lambda s: (s.record.timeline.queued, s.request_id), reverse=True)

    def send(self, worker: WorkerState, message: RouterMessage) -> None:
        self.actions.append(Send(worker.peer, message))

    # ---- in

    def admit(self, request: GenerateRequest, decode_workers: Sequence[WorkerState], now: float) -> None:
        """Takes a request into the queue. Raises AdmissionError, and then nothing has happened but the count."""
        try:
            prompt_ids = self._checked_prompt(request, decode_workers, now)
        except AdmissionError as error:
            self.totals.rejections[error.error.kind] += 1
            self.signals.refused(error.error.kind, now)
            raise
        num_prompt_tokens = len(prompt_ids) // 4
        output = OutputLog(request.sampling.max_tokens, request.resumed.output_ids if request.resumed else b"")
        record = RequestRecord(
            request.request_id,
            request.tenant,
            request.priority,
            num_prompt_tokens,
            Timeline(now),
            names=request.names,
            slo=request.slo,
            session=request.session,
            timeout_s=request.timeout_s,
            max_output_tokens=request.sampling.max_tokens,
            expected_output_tokens=request.expected_output_tokens,
            output=output,
            trace_id=request.trace_id,
        )
        state = RequestState(request, prompt_ids, output, record)
        sampling = request.sampling
        if sampling.ignore_eos and sampling.guide is None and not sampling.stop_token_ids:
            state.forecast = prescribed(sampling.max_tokens)
        else:
            state.forecast = self.outputs.predict(
                request.tenant, "", num_prompt_tokens, sampling.max_tokens, request.expected_output_tokens
            )
        first = self._requests.get(request.first_choice) if request.first_choice else None
        record.version = self._versions.choose(state, first.version if first is not None else None)
        self._requests[state.request_id] = state
        self.history.add(record)
        self.totals.num_prompt_tokens += num_prompt_tokens
        self.signals.arrived(state, now)
        self._request_deadlines.set(state.request_id, now + self._timeout_s(request))
        self._queue_deadlines.set(state.request_id, now)
        late_s = 0.0
        if request.choice:
            # Of the choices of one question each later one stands behind what comes meanwhile, as if the client had
            # asked for them one after the other.
            late_s = request.choice * (self.pace.interval_s(now) or UNKNOWN_INTERVAL_S)
        self.queue.push(state, late_s)
        state.enter("queued", now, f"taken over with {len(output)} tokens" if request.resumed else "")

    def _checked_prompt(self, request: GenerateRequest, decode_workers: Sequence[WorkerState], now: float) -> bytes:
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
        if request.version and not self._versions.is_known(request.version):
            raise InvalidRequestError(f"version {request.version!r} of the model is not served")
        refused = refusal(len(prompt_ids) // 4, decode_workers)
        if refused is not None:
            raise PromptTooLongError(refused)
        if request.resumed is None:
            check_admission(request, self.queue, self.pace, self._config, now)
        elif len(request.resumed.output_ids) >= 4 * request.sampling.max_tokens:
            raise InvalidRequestError("the output so far leaves no room for another token")
        return prompt_ids

    def _timeout_s(self, request: GenerateRequest) -> float:
        longest_s = self._config.request_timeout_s
        return longest_s if request.timeout_s is None else min(request.timeout_s, longest_s)

    # ---- on

    def leave_queue(self, state: RequestState, now: float) -> None:
        """A place was found."""
        if state.attempt == 0:
            wait_s = now - state.record.timeline.queued
            self.totals.count_wait(priority_class(state.request.priority), wait_s)
            self.signals.placed(state, wait_s, now)
        self.queue.take(state.request_id, now)
        self._queue_deadlines.drop(state.request_id)
        self.pace.note(len(self.queue), now)

    # ---- back and out

    def fail_attempt(
        self,
        state: RequestState,
        now: float,
        cause: RetryCause,
        detail: str,
        *,
        blamed: Iterable[WorkerState] = (),
        silent: WorkerState | None = None,
    ) -> None:
        """Ends an attempt everywhere; the request goes back to the queue with its tokens so far, or ends too.

        `blamed` workers are avoided from now on; `silent` has no part in the request any more and is told nothing.
        """
        state.num_failures += 1
        if state.num_failures >= self._config.max_attempts:
            message = f"attempt {state.num_failures} of {self._config.max_attempts} failed: {detail}"
            self.finish(state, now, "error", error=GenerationError("worker_failed", message), silent=silent)
            return
        state.failed_on.update(worker.peer for worker in blamed)
        self._requeue(state, now, cause, detail, silent)
        other = self._versions.after_failure(state, cause)
        if other is not None:
            self.change_version(state, other, now, f"version {state.version} has failed it")

    def take_back(self, state: RequestState, now: float, refused_by: WorkerState, reason: str) -> None:
        """The attempt was not begun: its decode worker has grown out of the credits that it had told. It gets nothing
        more until it has told new ones, and the request waits for those, its attempts uncounted up to `MAX_REFUSALS`.
        """
        refused_by.ledger.exhaust()
        detail = f"{refused_by.name}: {reason}"
        state.num_refusals += 1
        if state.num_refusals > MAX_REFUSALS:
            self.fail_attempt(state, now, "refused", detail, blamed=[refused_by], silent=refused_by)
        else:
            self._requeue(state, now, "refused", detail, refused_by)

    def place_anew(self, state: RequestState, now: float, detail: str) -> None:
        """Nobody has failed, but it has to begin somewhere else."""
        self._requeue(state, now, "worker_drained", detail, None)

    def end_move(self, state: RequestState, result: MoveResult, silent: WorkerState | None = None) -> None:
        """The one end of each move. Unless it has moved, the destination drops it; it is told so if not `silent`."""
        move = state.move
        assert move is not None
        state.move = None
        self.move_deadlines.drop(state.request_id)
        for worker in (move.source, move.destination):
            worker.num_moves -= 1
        move.destination.request_ids.discard(state.request_id)
        self.totals.migrations[result] += 1
        if result != "moved" and move.destination is not silent:
            self.send(move.destination, Cancel(state.request_id, move.attempt))

    def end_pause(self, state: RequestState, now: float) -> None:
        """The first token after a move is there."""
        assert state.paused_since_s is not None
        pause_s = now - state.paused_since_s
        state.paused_since_s = None
        self.totals.migration_pauses.observe(pause_s)
        state.record.note("decode", now, state.attempt, f"goes on after a pause of {pause_s * 1e3:.1f} ms")

    def _requeue(
        self, state: RequestState, now: float, cause: RetryCause, detail: str, silent: WorkerState | None
    ) -> None:
        self._leave_workers(state, silent)
        self.totals.retries[cause] += 1
        state.begin_next_attempt()
        state.enter("queued", now, detail)
        self.queue.push_front(state)
        self._queue_deadlines.set(state.request_id, now)

    # ---- between versions

    def find_versions(self, now: float) -> None:
        """Waiting requests leave versions that will not serve them. To be called when a worker came or went, the split
        changed, or a version's time is over."""
        self._versions.expire(now)
        for version, lane in self.queue:
            if self._versions.serves(version):
                continue
            for state in list(lane.candidates(now)):
                other = self._versions.next_version(state)
                if other is not None:
                    self.change_version(state, other, now, f"version {version} does not serve it" if version else "")
                elif self._versions.is_refused(state):
                    message = f"version {version!r} of the model is not served any more"
                    self.finish(state, now, "error", error=GenerationError("shutting_down", message, 1.0))

    def change_version(self, state: RequestState, version: str, now: float, why: str) -> None:
        """Of a request that waits."""
        if state.version:
            state.record.note("queued", now, state.attempt, f"goes on with version {version}: {why}")
        self._versions.moved(state, version)
        self.queue.move(state, version)

    def finish(
        self,
        state: RequestState,
        now: float,
        reason: FinishReason,
        *,
        error: GenerationError | None = None,
        silent: WorkerState | None = None,
        stop_token_id: int | None = None,
    ) -> None:
        """The only place where a request ends."""
        request_id = state.request_id
        self._leave_workers(state, silent)
        if request_id in self.queue:
            self.queue.remove(request_id)
        usage = state.usage
        self.queue.settle(state, usage.num_prompt_tokens + usage.num_output_tokens - usage.num_cached_tokens)
        self._queue_deadlines.drop(request_id)
        self._request_deadlines.drop(request_id)
        del self._requests[request_id]
        finish = GenerationFinish(reason, usage, stop_token_id, error)
        state.record.end(finish)
        state.enter("finished", now, f"{error.kind}: {error.message}" if error is not None else reason)
        self.totals.count_finish(finish)
        self._versions.finished(state, finish)
        self.signals.ended(state, finish, now)
        self._learn_output(state, reason)
        self.actions.append(Finish(request_id, finish))

    # ---- learning

    def _learn_output(self, state: RequestState, reason: FinishReason) -> None:
        """How long the answer was, for forecasts to come."""
        request, num_tokens = state.request, len(state.output)
        if num_tokens == 0 or request.sampling.ignore_eos:
            return  # a length that somebody has prescribed teaches nothing
        if reason in ("stop", "length"):
            self.outputs.score(state.forecast, num_tokens)
        self.outputs.learn(
            request.tenant,
            "",
            state.num_prompt_tokens,
            num_tokens,
            is_whole=reason == "stop",
            hint=request.expected_output_tokens,
        )

    def expire(self, now: float) -> None:
        """Ends what has waited or lived too long."""
        for request_id in self._request_deadlines.pop_due(now):
            state = self._requests[request_id]
            error = GenerationError("request_timeout", f"not finished within {self._timeout_s(state.request):g} s")
            self.finish(state, now, "error", error=error)
        for request_id in self._queue_deadlines.pop_due(now):
            message = f"no worker had room within {self._config.queue_timeout_s:g} s"
            error = GenerationError("queue_timeout", message, self.pace.retry_after_s(len(self.queue), now))
            self.finish(self._requests[request_id], now, "error", error=error)
        for request_id in self.reserve_deadlines.pop_due(now):
            state = self._requests[request_id]
            assert state.decode is not None
            detail = f"{state.decode.name} did not reserve within {self._config.reserve_timeout_s:g} s"
            self.fail_attempt(state, now, "reserve_timeout", detail, blamed=[state.decode])

    def _leave_workers(self, state: RequestState, silent: WorkerState | None) -> None:
        """Takes the request off its workers and cancels it at those who know of it, except `silent`."""
        request_id = state.request_id
        if state.move is not None:
            self.end_move(state, "ended", silent)
        self.reserve_deadlines.drop(request_id)
        if state.pending is not None:  # nobody computes its prompt any more
            for worker in (state.decode, state.prefill):
                if worker is not None:
                    self._index.give_up(worker, state)
        progress.leave(state)
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
                self.send(worker, Cancel(request_id, state.attempt))
        state.decode = state.prefill = None

    def check_integrity(self) -> None:
        """Raises AssertionError if a request is in two states at once, or a deadline belongs to nobody."""
        num_queued = num_placed = 0
        for request_id, state in self._requests.items():
            queued, placed = state.phase == "queued", state.phase == "placed"
            num_queued += queued
            num_placed += placed
            assert queued == (state.decode is None) == (request_id in self.queue), request_id
            assert queued == (request_id in self._queue_deadlines), request_id
            assert placed == (request_id in self.reserve_deadlines), request_id
            assert state.prefill is None or state.decode is not None, request_id
            for worker in (state.decode, state.prefill):
                assert worker is None or request_id in worker.request_ids, request_id
        assert len(self.queue) == len(self._queue_deadlines) == num_queued
        assert len(self.reserve_deadlines) == num_placed
        assert len(self._request_deadlines) == len(self._requests)
