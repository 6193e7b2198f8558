"""All requests that have not finished: the queue, their deadlines, and the ways out of an attempt.

A request is either waiting (in the queue, with a queue deadline, on no worker) or placed (on a decode worker). It
leaves the table once, through `finish`; `fail_attempt` puts it back into the queue as long as it has attempts left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.queue.backlog_estimate import BacklogEstimate
from slipstream.router.dispatch.queue.placement_rate import UNKNOWN_INTERVAL_S, PlacementRate
from slipstream.router.dispatch.queue.queues_by_version import QueuesByVersion
from slipstream.router.dispatch.queue.work_queue import priority_class
from slipstream.router.dispatch.table.actions import Action, Finish, Send
from slipstream.router.dispatch.table.admission import check_load, check_request
from slipstream.router.dispatch.table.request_signals import RequestSignals
from slipstream.router.dispatch.table.versions import Versions
from slipstream.router.placement import output_forecasts
from slipstream.router.placement.placed_request import PlacedRequests
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.placement.retention.session_retention import SessionRetention
from slipstream.router.protocol.generation import (
    AdmissionError,
    Deadline,
    Figure,
    GenerateRequest,
    GenerationError,
    GenerationFinish,
    InvalidRequestError,
)
from slipstream.router.protocol.messages import Cancel, FinishReason, RouterMessage
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.deadlines import DeadlineRing, Deadlines
from slipstream.router.requests.history import History
from slipstream.router.requests.migration import MigrationResult
from slipstream.router.requests.output_length import OutputLengths
from slipstream.router.requests.rejections import RejectedRequest
from slipstream.router.requests.request_state import RequestState
from slipstream.router.status.status import RetryCause, Totals

# Credits may promise too much now and then. But a worker that repeatedly refuses what it has just promised counts pages
# differently from the router, and endless tries would be a loop as fast as the network allows.
MAX_REFUSALS = 64


class RequestTable:
    """`actions` collects the actions in order, until the dispatcher returns them to its shell."""

    def __init__(
        self,
        config: DispatchConfig,
        history: History,
        versions: Versions,
        index: PrefixIndex,
        retention: SessionRetention,
    ) -> None:
        self._config = config
        self._index = index
        self._retention = retention
        self._versions = versions
        self._requests: dict[str, RequestState] = {}
        self.get: Callable[[str], RequestState | None] = self._requests.get  # called for every token
        self._queue_deadlines = DeadlineRing(config.queue_timeout_s)
        self._request_deadlines = Deadlines()
        self.reserve_deadlines = DeadlineRing(config.reserve_timeout_s)
        self.migration_deadlines = Deadlines()
        self.queue = QueuesByVersion(config.ageing_s)
        self.placed = PlacedRequests()
        self.history = history
        self.totals = Totals(sessions=retention.events)
        self.placement_rate = PlacementRate()
        self.outputs = OutputLengths()
        self.signals = RequestSignals()
        self.actions: list[Action] = []

    def follow(self, config: DispatchConfig) -> None:
        """Takes over changed limits and service levels, for new requests."""
        self._config = config

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._requests.values())

    def __getitem__(self, request_id: str) -> RequestState:
        return self._requests[request_id]

    def next_deadline(self) -> float | None:
        first = None  # a plain loop, because this is called after every message
        for ring in (self._queue_deadlines, self.reserve_deadlines, self._request_deadlines, self.migration_deadlines):
            due = ring.first
            if due is not None and (first is None or due < first):
                first = due
        return first

    def latest_first(self, request_ids: Iterable[str]) -> list[RequestState]:
        """The requests in the order in which they are to be pushed to the front of the queue, so that the earliest ends
        up first. Ties are broken by id, so that runs can be repeated."""
        states = [self._requests[request_id] for request_id in request_ids]
        return sorted(states, key=lambda s: (s.record.timeline.queued, s.request_id), reverse=True)

    def send(self, worker: WorkerState, message: RouterMessage) -> None:
        self.actions.append(Send(worker.peer, message))

    def admit(self, request: GenerateRequest, decode_workers: Sequence[WorkerState], now: float) -> None:
        """Takes a request into the queue. Raises AdmissionError if it is refused; then only the refusal is counted and
        kept."""
        try:
            prompt_ids = self._check(request, decode_workers, now)
        except AdmissionError as error:
            self.totals.rejections[error.error.kind] += 1
            self.signals.refused(error.error.kind, now)
            self.history.refuse(RejectedRequest.of(request, error.error, now))
            raise
        levels = request.slo.or_default(self._config.slo.levels)
        state = RequestState.of(request, prompt_ids, levels, self._deadline_of(request), now)
        state.forecast = output_forecasts.forecast(self.outputs, state)
        first = self._requests.get(request.first_choice) if request.first_choice else None
        state.record.version = self._versions.choose(state, first.version if first is not None else None, now)
        if request.retention is not None:
            for worker, message in self._retention.arrived(state, now):
                self.send(worker, message)
        self._requests[state.request_id] = state
        self.history.add(state.record, request.replaces)
        self.totals.num_prompt_tokens += state.num_prompt_tokens
        self.signals.arrived(state, now)
        self._request_deadlines.set(state.request_id, now + state.deadline.limit_s)
        self._queue_deadlines.set(state.request_id, now)
        late_s = 0.0
        if request.choice:
            # Choice k of an answer queues as if it had come k placements later, so that the choices of one client do
            # not delay all requests that come shortly after.
            late_s = request.choice * (self.placement_rate.interval_s(now) or UNKNOWN_INTERVAL_S)
        if not self.queue:
            self.placement_rate.begin(now)
        self.queue.push(state, late_s)
        state.enter("queued", now, f"continued with {len(state.output)} tokens" if request.resumed else "")

    def _check(self, request: GenerateRequest, decode_workers: Sequence[WorkerState], now: float) -> bytes:
        """Returns the prompt as packed int32. Raises AdmissionError if the request must not be let in."""
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        prompt_ids = check_request(request, self._versions, decode_workers)
        if request.resumed is None:
            backlog = BacklogEstimate(self.queue.waiting, decode_workers, self.get)
            check_load(request, self.queue, self.placement_rate, backlog, self._config, now)
        return prompt_ids

    def _deadline_of(self, request: GenerateRequest) -> Deadline:
        longest_s = self._config.request_timeout_s
        if request.timeout_s is not None and request.timeout_s <= longest_s:
            return Deadline("timeout_s", request.timeout_s)
        return Deadline("request_timeout_s", longest_s)

    def leave_queue(self, state: RequestState, now: float) -> None:
        """The request has been placed."""
        if state.attempt == 0:
            wait_s = now - state.record.timeline.queued
            self.totals.count_wait(priority_class(state.request), wait_s)
            self.signals.placed(state, wait_s, now)
        self.queue.take(state.request_id, now)
        self._queue_deadlines.drop(state.request_id)
        self.placement_rate.note(len(self.queue.waiting), now)

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
        """Ends an attempt at all workers. The request goes back to the queue with its tokens so far, or ends with an
        error if this was its last attempt.

        `blamed` workers are avoided from now on. `silent` no longer knows the request, so it is sent no Cancel.
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
        """The decode worker refused the attempt, because what runs there has outgrown its last credits. It is given
        nothing more until it reports new credits. Up to `MAX_REFUSALS` such refusals cost the request no attempt.
        """
        refused_by.ledger.exhaust()
        detail = f"{refused_by.name}: {reason}"
        state.num_refusals += 1
        if state.num_refusals > MAX_REFUSALS:
            self.fail_attempt(state, now, "refused", detail, blamed=[refused_by], silent=refused_by)
        else:
            self._requeue(state, now, "refused", detail, refused_by)

    def place_anew(self, state: RequestState, now: float, detail: str) -> None:
        """Puts a request back into the queue although nothing failed, because its worker is draining."""
        self._requeue(state, now, "worker_drained", detail, None)

    def end_migration(self, state: RequestState, result: MigrationResult, silent: WorkerState | None = None) -> None:
        """The one place where a migration ends. Unless the sequence has moved, the destination gets a Cancel (not if it
        is `silent`)."""
        migration = state.migration
        assert migration is not None
        state.migration = None
        self.migration_deadlines.drop(state.request_id)
        for worker in (migration.source, migration.destination):
            worker.num_migrations -= 1
        migration.destination.request_ids.discard(state.request_id)
        self.totals.migrations[result] += 1
        if result != "moved" and migration.destination is not silent:
            self.send(migration.destination, Cancel(state.request_id, migration.attempt))

    def end_pause(self, state: RequestState, now: float) -> None:
        """The first token after a migration has arrived."""
        assert state.paused_since_s is not None
        pause_s = now - state.paused_since_s
        state.paused_since_s = None
        self.totals.migration_pauses.observe(pause_s)
        state.record.note("decode", now, state.attempt, f"continues after a pause of {pause_s * 1e3:.1f} ms")

    def _requeue(
        self, state: RequestState, now: float, cause: RetryCause, detail: str, silent: WorkerState | None
    ) -> None:
        self._leave_workers(state, now, silent)
        self.totals.retries[cause] += 1
        state.begin_next_attempt()
        state.enter("queued", now, detail)
        if not self.queue:
            self.placement_rate.begin(now)
        self.queue.push_front(state)
        self._queue_deadlines.set(state.request_id, now)

    def find_versions(self, now: float) -> None:
        """Moves waiting requests away from versions that will not serve them. To be called when a worker joined or
        left, when the split changed, and when a version has been without decode workers for too long."""
        self._versions.expire(now)
        for version, queue in self.queue:
            if self._versions.serves(version):
                continue
            for state in list(queue.candidates(now)):
                other = self._versions.next_version(state)
                if other is not None:
                    self.change_version(state, other, now, f"version {version} does not serve it" if version else "")
                elif self._versions.is_refused(state):
                    message = f"version {version!r} of the model is not served any more"
                    self.finish(state, now, "error", error=GenerationError("shutting_down", message, 1.0))

    def change_version(self, state: RequestState, version: str, now: float, why: str) -> None:
        """Moves a waiting request to another version."""
        if state.version:
            state.record.note("queued", now, state.attempt, f"continues with version {version}: {why}")
        self._versions.moved(state, version)
        self.placed.pop(state.request_id, None)
        self._index.forget(state.request_id)  # pages of another version have other block ids
        self.queue.change_version(state, version)

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
        """The one place where a request ends."""
        request_id = state.request_id
        if state.request.retention is not None:
            self._retention.ended(state, now, is_whole=reason in ("stop", "length"))
        self._leave_workers(state, now, silent)
        if request_id in self.queue.waiting:
            self.queue.remove(request_id)
        usage = state.usage
        self.queue.settle(state, usage.num_prompt_tokens + usage.num_output_tokens - usage.num_cached_tokens)
        self._queue_deadlines.drop(request_id)
        self._request_deadlines.drop(request_id)
        self._index.forget(request_id)
        del self._requests[request_id]
        finish = GenerationFinish(reason, usage, stop_token_id, error)
        state.record.end(finish)
        state.enter("finished", now, f"{error.kind}: {error.message}" if error is not None else reason)
        self.totals.count_finish(finish)
        self._versions.finished(state, finish, now)
        self.signals.ended(state, finish, now)
        output_forecasts.learn(self.outputs, state, reason)
        self.actions.append(Finish(request_id, finish))

    def expire(self, now: float) -> None:
        """Ends requests, and attempts, whose deadline has come."""
        for request_id in self._request_deadlines.pop_due(now):
            state = self._requests[request_id]
            error = GenerationError("request_timeout", f"not finished within {state.deadline}")
            self.finish(state, now, "error", error=error)
        for request_id in self._queue_deadlines.pop_due(now):
            timeout_s = self._queue_deadlines.timeout_s
            missing = "had room" if self._versions.live else "of the model has come"
            message = f"no worker {missing} within {timeout_s:g} s (queue_timeout_s)"
            num_waiting = len(self.queue)
            figures = (Figure("num_waiting", num_waiting), Figure("deadline_s", timeout_s))
            error = GenerationError(
                "queue_timeout", message, self.placement_rate.retry_after_s(num_waiting, now), figures
            )
            self.finish(self._requests[request_id], now, "error", error=error)
        for request_id in self.reserve_deadlines.pop_due(now):
            state = self._requests[request_id]
            assert state.decode is not None
            detail = f"{state.decode.name} did not reserve within {self.reserve_deadlines.timeout_s:g} s"
            self.fail_attempt(state, now, "reserve_timeout", detail, blamed=[state.decode])

    def _leave_workers(self, state: RequestState, now: float, silent: WorkerState | None) -> None:
        """Takes the request off its workers, and sends Cancel to those that know it, except `silent`."""
        request_id = state.request_id
        if state.migration is not None:
            self.end_migration(state, "ended", silent)
        self.reserve_deadlines.drop(request_id)
        placed = self.placed.pop(request_id, None)
        if placed is not None:
            if placed.pending is not None and placed.placed_s is not None:  # the prompt will not be computed there
                for worker in (state.decode, state.prefill):
                    if worker is not None:
                        self._index.give_up(worker, state, placed.placed_s)
            placed.leave(now)
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
        """Raises AssertionError if a request is in two states at once, or a deadline belongs to no request."""
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
        assert self.placed.keys() <= self._requests.keys()
