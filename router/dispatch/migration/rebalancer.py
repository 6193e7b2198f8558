"""Moves running answers from decode workers that are slow for them to those that are faster.

Every `REBALANCE_INTERVAL_S`, while there are events, the slowest worker of a version is compared with the fastest; of
many workers also the second slowest with the second fastest, and so on (`rebalance_choice`). A migration that pays
begins at once or is forgotten. An answer that has moved stays until it is twice as long, so none moves more than a few
times.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.migration.destinations import may_migrate
from slipstream.router.dispatch.migration.migration_requests import MigrationRequests
from slipstream.router.dispatch.migration.migration_scheduler import MigrationScheduler
from slipstream.router.dispatch.migration.rebalance_choice import (
    FASTER,
    MigratableStream,
    ProjectedWorker,
    best_migration,
    filled_after_s,
)
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.registry.worker_registry import WorkerRegistry, WorkerState
from slipstream.router.requests.request_state import RequestState

REBALANCE_INTERVAL_S = 0.25  # between two looks
ENDS = 16  # one worker in so many, at least one, is looked at at either end: between the others there is little to gain
SURE_SAMPLES = 32  # steps that have to be measured on a worker before its own times are used
# An answer that has outlived its forecast is expected to grow by half. By the prior of `output_length` that holds for
# one of 1,000 tokens; a shorter one would grow by more.
OUTLIVED = 0.5


class Rebalancer:
    """Sans-IO. `rebalance` is called with every event, and mostly returns at once."""

    def __init__(
        self,
        config: DispatchConfig,
        registry: WorkerRegistry,
        table: RequestTable,
        requests: MigrationRequests,
        scheduler: MigrationScheduler,
    ) -> None:
        self._config = config.migration
        self._registry = registry
        self._table = table
        self._requests = requests
        self._scheduler = scheduler
        self._due_s = float("-inf")

    def rebalance(self, now: float) -> None:
        """Begins the migrations that pay, if a comparison is due."""
        if now < self._due_s or not self._config.rebalance:
            return
        self._due_s = now + REBALANCE_INTERVAL_S
        for version in self._registry.decode_slots:
            workers = self._registry.workers_of("decode", version)
            if len(workers) > 1:
                arrivals_per_s = sum(
                    worker.load.recent_prefills(now)[0]
                    for role in ("prefill", "decode")
                    for worker in self._registry.workers_of(role, version)
                )
                self._compare(workers, arrivals_per_s, now)

    def _compare(self, workers: list[WorkerState], arrivals_per_s: float, now: float) -> None:
        projected = self._projected(workers, now)
        by_pace = sorted(workers, key=lambda worker: (projected[worker].step_s(), worker.name))
        step_s = [projected[worker].step_s() for worker in by_pace]
        total_s = [0.0, *accumulate(step_s)]
        for at in range(max(len(by_pace) // ENDS, 1)):
            source, target = by_pace[-1 - at], by_pace[at]
            source_s = step_s[-1 - at]
            if projected[target].step_s(1) > FASTER * source_s:
                return
            num_faster = len(by_pace) - 1 - at
            lead_s = num_faster * source_s - total_s[num_faster]
            horizon_s = filled_after_s(projected[target], lead_s, arrivals_per_s)
            self._level(source, projected[source], target, projected[target], horizon_s, now)

    def _projected(self, workers: list[WorkerState], now: float) -> dict[WorkerState, ProjectedWorker]:
        """The workers as they will be when the migrations under way have ended."""
        num_seqs: dict[WorkerState, int] = defaultdict(int)
        context: dict[WorkerState, int] = defaultdict(int)
        for request_id in self._requests:
            state = self._table.get(request_id)
            if state is not None and state.migration is not None:
                for worker, sign in ((state.migration.source, -1), (state.migration.destination, 1)):
                    num_seqs[worker] += sign
                    context[worker] += sign * state.num_tokens
        # If one of them is new and known by its pool's times only, so are all: fits differ more than workers do.
        are_known = all(worker.times.num_samples("decode") >= SURE_SAMPLES for worker in workers)
        pool = self._registry.pools["decode"]
        # Which worker computes prompts changes faster than answers end, so a worker's own share does not predict.
        share = sum(worker.load.recent_prefills(now)[1] for worker in workers) / len(workers)
        return {
            worker: ProjectedWorker(
                (worker.times if are_known else pool).coefficients("decode"),
                worker.load.num_seqs + num_seqs[worker],
                worker.load.context_tokens + context[worker],
                worker.times.coefficients("transfer"),
                worker.hello.page_tokens,
                share,
            )
            for worker in workers
        }

    def _level(
        self,
        source: WorkerState,
        projected_source: ProjectedWorker,
        target: WorkerState,
        projected_target: ProjectedWorker,
        horizon_s: float,
        now: float,
    ) -> None:
        """Moves answers from one worker to the other as long as that pays and is allowed."""
        here, there = self._states_on(source), self._states_on(target)
        streams = {state.request_id: self._stream(state, now) for state in (*here, *there)}
        movable = {
            state.request_id: state
            for state in here
            if state.migration is None
            and state.phase == "decode"
            and len(state.output) >= 2 * state.num_output_at_migration
        }
        staying = [streams[state.request_id] for state in here if state.migration is None]
        meeting = [
            streams[state.request_id] for state in there if state.migration is None or state.decode is not target
        ]
        while may_migrate(source, self._config) and may_migrate(target, self._config):
            going = [streams[request_id] for request_id in movable]
            gain = best_migration(projected_source, projected_target, going, staying, meeting, horizon_s)
            if gain is None:
                return
            stream = gain.stream
            state = movable.pop(stream.request_id)
            pace = f"{gain.to_step_s * 1e3:.3g} instead of {gain.from_step_s * 1e3:.3g} ms a step"
            why = f"{pace}, saves {gain.seconds:.3g} s"
            if self._scheduler.begin_now(state, target, why, now):
                self._table.totals.num_rebalanced += 1
                staying.remove(stream)
                meeting.append(stream)
                for projected, sign in ((projected_source, -1), (projected_target, 1)):
                    projected.num_seqs += sign
                    projected.context_tokens += sign * stream.num_tokens

    def _states_on(self, worker: WorkerState) -> list[RequestState]:
        """The requests that decode there or are on their way there, in a reproducible order."""
        states = (self._table.get(request_id) for request_id in worker.request_ids)
        on_it = [
            state
            for state in states
            if state is not None
            and state.record.timeline.first_token is not None
            and (state.decode is worker or (state.migration is not None and state.migration.destination is worker))
        ]
        return sorted(on_it, key=lambda state: (state.record.timeline.queued, state.request_id))

    def _stream(self, state: RequestState, now: float) -> MigratableStream:
        num_output, sampling, levels = len(state.output), state.request.sampling, state.levels
        first_s = state.record.timeline.first_token
        assert first_s is not None
        remaining = max(self._table.placed[state.request_id].remaining_tokens, OUTLIVED * num_output)
        remaining = max(min(remaining, sampling.max_tokens - num_output), 1.0)
        return MigratableStream(
            state.request_id,
            state.num_tokens,
            remaining,
            max(num_output - 1, 0),
            now - first_s,
            levels.itl_s,
            levels.ttft_s + (num_output + remaining) * levels.itl_s,
        )
