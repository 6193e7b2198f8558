"""A tensor model under load in virtual time. Its scheduler is the router's; clients and instances are made up."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from slipstream.router.batching.scheduler import QueuedRequest, RequestBatch
from slipstream.router.batching.scheduler_choice import scheduler_of
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, SequenceFlags
from slipstream.router.tensors.model_spec import ModelSpec

EventKind = Literal["arrival", "executed", "timer"]
Execution = tuple[str, RequestBatch]  # at an instance


@dataclass(frozen=True, slots=True)
class TensorLoad:
    """`rate_s` sessions come a second, at random times; 0: `num_clients` begin the next session when one is over. A
    session is `num_steps` requests of `num_rows` rows, one after the other; of a model with sequences it is one."""

    rate_s: float = 0.0
    num_clients: int = 1
    num_steps: int = 1
    num_rows: int = 1
    duration_s: float = 10.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ExecutionTime:
    """Of a batch: a fixed time, and one for each row."""

    batch_s: float
    row_s: float = 0.0

    def of(self, num_rows: int) -> float:
        return self.batch_s + num_rows * self.row_s


@dataclass(slots=True)
class BatchingOutcome:
    """`latencies_s` are from arrival to the end of the execution; `busy_s` is the time of each instance."""

    duration_s: float
    busy_s: dict[str, float]
    latencies_s: list[float] = field(default_factory=list)
    num_refused: int = 0
    num_batches: int = 0
    num_rows: int = 0

    def latency_s(self, quantile: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else 0.0

    @property
    def requests_s(self) -> float:
        return len(self.latencies_s) / self.duration_s

    @property
    def rows_a_batch(self) -> float:
        return self.num_rows / self.num_batches if self.num_batches else 0.0

    @property
    def utilization(self) -> float:
        return sum(self.busy_s.values()) / (self.duration_s * len(self.busy_s))


@dataclass(slots=True, eq=False)
class SimRequest(QueuedRequest):
    """`step` counts the requests of its session."""

    step: int = 0


class BatchingRun:
    """`speeds` has one for each instance; at 0.5 executions take twice as long. Free instances pull from one queue, as
    in the router. With `is_pushed` each instance has its own, and requests go to one after the other."""

    def __init__(
        self,
        spec: ModelSpec,
        load: TensorLoad,
        time: ExecutionTime,
        speeds: Sequence[float],
        *,
        is_pushed: bool = False,
    ) -> None:
        self._has_sequences = spec.sequence_batching is not None
        self._model = spec.name
        self._load = load
        self._time = time
        self._draw = random.Random(load.seed)
        self._speeds = {f"{spec.name}_0_{index}": speed for index, speed in enumerate(speeds)}
        shared = None if is_pushed else scheduler_of(spec)
        self._schedulers = {name: shared or scheduler_of(spec) for name in self._speeds}
        self._distinct = list(self._schedulers.values()) if is_pushed else [next(iter(self._schedulers.values()))]
        self._free = dict.fromkeys(self._speeds)
        self._events: list[tuple[float, int, EventKind, Execution | None]] = []
        self._numbers = count(1)
        self._sessions = count(1)
        self._turn = count()
        self._outcome = BatchingOutcome(load.duration_s, dict.fromkeys(self._speeds, 0.0))
        for instance, scheduler in self._schedulers.items():
            scheduler.add_instance(instance, 0.0)

    def run(self) -> BatchingOutcome:
        """New sessions begin for `duration_s`; what ends later does not count."""
        if self._load.rate_s:
            self._add_event(self._draw.expovariate(self._load.rate_s), "arrival")
        else:
            for _ in range(self._load.num_clients):
                self._begin(next(self._sessions), 0, 0.0)
        self._give_work(0.0)
        while self._events and self._events[0][0] <= self._load.duration_s:
            now, _, kind, execution = heapq.heappop(self._events)
            if kind == "arrival":
                self._begin(next(self._sessions), 0, now)
                self._add_event(now + self._draw.expovariate(self._load.rate_s), "arrival")
            elif execution is not None:
                self._executed(*execution, now)
            self._give_work(now)
        return self._outcome

    def _begin(self, session: int, step: int, now: float) -> None:
        """A session does its next request."""
        load = self._load
        flags = None
        if self._has_sequences:
            flags = SequenceFlags(session, is_start=step == 0, is_end=step == load.num_steps - 1)
        request = InferRequest(self._model, id=str(session), sequence=flags)
        scheduler = self._distinct[(session if self._has_sequences else next(self._turn)) % len(self._distinct)]
        try:
            scheduler.add(SimRequest(request, load.num_rows, step=step), now)
        except InferError:
            self._outcome.num_refused += 1

    def _executed(self, instance: str, batch: RequestBatch, now: float) -> None:
        self._free[instance] = None
        self._schedulers[instance].executed(batch, instance, now)
        for request in batch.requests:
            assert isinstance(request, SimRequest)
            self._outcome.latencies_s.append(now - request.queued_s)
            if request.step + 1 < self._load.num_steps:
                self._begin(int(request.request.id), request.step + 1, now)
            elif not self._load.rate_s:
                self._begin(next(self._sessions), 0, now)

    def _give_work(self, now: float) -> None:
        for scheduler in self._distinct:
            next_s = scheduler.next_time
            if next_s is not None and next_s <= now:
                self._outcome.num_refused += len(scheduler.due(now))
        for instance in list(self._free):
            batch = self._schedulers[instance].take(instance, now)
            if batch is not None:
                self._execute(instance, batch, now)
        for scheduler in self._distinct:
            next_s = scheduler.next_time
            if next_s is not None:
                self._add_event(max(next_s, now), "timer")

    def _execute(self, instance: str, batch: RequestBatch, now: float) -> None:
        del self._free[instance]
        num_rows = sum(request.batch_size for request in batch.requests)
        duration_s = self._time.of(num_rows) / self._speeds[instance]
        self._outcome.num_batches += 1
        self._outcome.num_rows += num_rows
        self._outcome.busy_s[instance] += min(duration_s, self._load.duration_s - now)
        self._add_event(now + duration_s, "executed", (instance, batch))

    def _add_event(self, at_s: float, kind: EventKind, execution: Execution | None = None) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), kind, execution))
