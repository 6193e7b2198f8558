"""Random requests to a scheduler and to a plain model of its specification, side by side in virtual time. Both must
give the same batches, rejections and refusals at every step, and every request must end exactly once.

The scheduler is called as the router calls it: when something happens, and at its `next_time`. The plain model is asked
at every step, so a `next_time` that comes too late shows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from slipstream.router.batching.scheduler import BatchScheduler, QueuedRequest, RequestBatch
from slipstream.router.batching.scheduler_choice import scheduler_of
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import SequenceFlags
from slipstream.router.tensors.model_spec import (
    DynamicBatching,
    ModelSpec,
    QueuePolicy,
    SequenceBatching,
    TensorSpec,
)
from tests.support.router.batching.made_requests import places, queued, spec_of
from tests.support.router.batching.plain_batcher import Entry, PlainBatcher
from tests.support.router.batching.plain_sequences import PlainSequences

STEP_US = 15_625  # 1/64 s, so that times in seconds are exact
STEP_S = STEP_US / 1e6
START_S = 1.0
NUM_STEPS = 60
INPUTS = (TensorSpec("X", "FP32", (-1,)),)


class MismatchError(AssertionError):
    """The scheduler and the plain model differ."""


class VirtualWorld:
    """What both worlds have in common: time, instances, and the ends of requests."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.seed = seed
        self.now = START_S
        self.spec = self.make_spec()
        self.scheduler: BatchScheduler = scheduler_of(self.spec)
        self.requests: dict[str, QueuedRequest] = {}
        self.waiting: list[str] = []
        self.ends: Counter[str] = Counter()
        self.busy: dict[str, tuple[RequestBatch, float] | None] = {}  # until when an instance executes
        self.num_made = 0
        self.num_instances = 0

    def make_spec(self) -> ModelSpec:
        raise NotImplementedError

    def run(self) -> None:
        for _ in range(self.draw.randint(1, 3)):
            self.start_instance()
        for number in range(NUM_STEPS):
            self.now = START_S + number * STEP_S
            self.step(can_begin=number < NUM_STEPS // 2)
        for number in range(NUM_STEPS, 40 * NUM_STEPS):
            if not self.waiting and not any(self.busy.values()):
                break
            self.now = START_S + number * STEP_S
            self.step(can_begin=False)
        self.check_end()

    def step(self, *, can_begin: bool) -> None:
        has_event = self.finish_executions()
        if can_begin:
            for _ in range(self.draw.choice((0, 0, 0, 1, 1, 2, 5))):
                self.begin_request()
                has_event = True
            if self.waiting and self.draw.random() < 0.1:
                self.cancel(self.draw.choice(self.waiting))
                has_event = True
            if self.draw.random() < 0.03:
                self.lose_instance(self.draw.choice(list(self.busy)))
                self.start_instance()
                has_event = True
        next_time = self.scheduler.next_time
        is_due = next_time is not None and next_time <= self.now
        self.compare_rejections(is_due=is_due)
        for instance in [name for name, work in self.busy.items() if work is None]:
            self.compare_batches(instance, is_asked=has_event or is_due)

    def finish_executions(self) -> bool:
        over = [name for name, work in self.busy.items() if work is not None and work[1] <= self.now]
        for instance in over:
            work = self.busy[instance]
            assert work is not None
            self.busy[instance] = None
            again = [request for request in work[0].requests if self.is_rescheduled(request)]
            self.scheduler.executed(work[0], instance, self.now)
            self.plain_executed(instance)
            for request in work[0].requests:
                if request not in again:
                    self.end(request.request.id)
        return bool(over)

    def compare_rejections(self, *, is_due: bool) -> None:
        expected = self.plain_rejections()
        rejected = self.scheduler.due(self.now) if is_due else ()
        ids = [each.request.request.id for each in rejected]
        self.compare("rejected", sorted(ids), sorted(expected))
        for id in ids:
            self.waiting.remove(id)
            self.end(id)

    def compare_batches(self, instance: str, *, is_asked: bool) -> None:
        expected = self.plain_take(instance)
        batch = self.scheduler.take(instance, self.now) if is_asked else None
        self.compare(f"batch of {instance}", places(batch), expected)
        if batch is not None:
            self.busy[instance] = (batch, self.now + self.draw.randint(1, 6) * STEP_S)
            for request in batch.requests:
                self.waiting.remove(request.request.id)

    def compare(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise MismatchError(
                f"seed {self.seed}, {self.now - START_S:.6f} s, {what}: {found}, not {expected}; {self.spec}"
            )

    def cancel(self, id: str) -> None:
        is_out = self.scheduler.cancel(self.requests[id], self.now)
        self.compare(f"cancelled {id}", is_out, self.plain_cancel(id))
        self.waiting.remove(id)
        self.end(id)

    def submit(self, request: QueuedRequest, *, is_accepted: bool) -> None:
        """`is_accepted`: the plain model has taken it."""
        try:
            self.scheduler.add(request, self.now)
        except InferError as error:
            self.compare(f"refused {request.request.id} ({error})", True, not is_accepted)
            return
        self.compare(f"accepted {request.request.id}", True, is_accepted)
        self.requests[request.request.id] = request
        self.waiting.append(request.request.id)

    def is_rescheduled(self, request: QueuedRequest) -> bool:
        """Whether it was queued again after its execution."""
        return False

    def start_instance(self) -> None:
        self.num_instances += 1
        name = f"m_0_{self.num_instances}"
        self.busy[name] = None
        self.scheduler.add_instance(name, self.now)
        self.plain_add_instance(name)

    def new_id(self) -> str:
        self.num_made += 1
        return f"r{self.num_made}"

    def end(self, id: str) -> None:
        self.ends[id] += 1

    def check_end(self) -> None:
        self.compare("ends", {id for id, num in self.ends.items() if num == 1}, set(self.requests))
        self.compare("waiting", self.scheduler.num_waiting, 0)

    def begin_request(self) -> None:
        raise NotImplementedError

    def lose_instance(self, instance: str) -> None:
        raise NotImplementedError

    def plain_add_instance(self, instance: str) -> None:
        raise NotImplementedError

    def plain_executed(self, instance: str) -> None:
        raise NotImplementedError

    def plain_rejections(self) -> Sequence[str]:
        raise NotImplementedError

    def plain_take(self, instance: str) -> list[str | None]:
        raise NotImplementedError

    def plain_cancel(self, id: str) -> bool:
        raise NotImplementedError


class DynamicWorld(VirtualWorld):
    """Requests of a model with or without dynamic batching."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.plain = PlainBatcher.of(self.spec)
        self.taken: dict[str, list[Entry]] = {}

    def make_spec(self) -> ModelSpec:
        draw = self.draw
        max_batch_size = draw.choice((0, 1, 4, 8))
        if draw.random() < 0.1:
            return spec_of(max_batch_size, INPUTS)
        num_levels = draw.choice((0, 0, 3))
        preferred = (
            tuple(sorted(draw.sample(range(1, max_batch_size + 1), draw.choice((0, 1, 2)))))
            if (max_batch_size > 1)
            else ()
        )
        batching = DynamicBatching(
            preferred_batch_sizes=preferred,
            max_queue_delay_us=draw.choice((0, STEP_US, 5 * STEP_US)),
            priority_levels=num_levels,
            default_priority_level=draw.randint(1, num_levels) if num_levels else 0,
            default_queue_policy=self.make_policy(),
            priority_queue_policies={2: self.make_policy()} if num_levels else {},
        )
        return spec_of(max_batch_size, INPUTS, dynamic_batching=batching)

    def make_policy(self) -> QueuePolicy:
        draw = self.draw
        return QueuePolicy(
            max_queue_size=draw.choice((0, 0, 3)),
            default_timeout_us=draw.choice((0, 4 * STEP_US, 9 * STEP_US)),
            timeout_action="DELAY" if draw.random() < 0.5 else "REJECT",
            allow_timeout_override=draw.random() < 0.5,
        )

    def begin_request(self) -> None:
        draw, id = self.draw, self.new_id()
        rows = draw.choice((1, 1, 1, 2, 3)) if self.spec.max_batch_size > 1 else 1
        rows = min(rows, max(1, self.spec.max_batch_size))
        size = draw.choice((3, 3, 3, 3, 4))
        shape = (rows, size) if self.spec.max_batch_size else (size,)
        priority, timeout_us = draw.randint(0, 4), draw.choice((0, 2 * STEP_US, 50 * STEP_US))
        request = queued(id, rows, shapes={"X": shape}, priority=priority, timeout_us=timeout_us)
        compared = size if self.spec.dynamic_batching else None
        self.submit(request, is_accepted=self.plain.add(id, rows, compared, priority, timeout_us, self.now))

    def lose_instance(self, instance: str) -> None:
        work = self.busy.pop(instance)
        self.compare("lost", list(self.scheduler.remove_instance(instance, self.now)), [])
        for request in work[0].requests if work is not None else ():
            self.compare("retried", self.scheduler.retry(request, self.now), True)
            self.waiting.append(request.request.id)
        for entry in self.taken.pop(instance, ()) if work is not None else ():
            self.plain.put_back(entry)

    def plain_add_instance(self, instance: str) -> None:
        """Any instance takes from the one queue."""

    def plain_executed(self, instance: str) -> None:
        del self.taken[instance]

    def plain_rejections(self) -> Sequence[str]:
        self.plain.expire(self.now)
        rejected, self.plain.rejected = self.plain.rejected, []
        return rejected

    def plain_take(self, instance: str) -> list[str | None]:
        taken = self.plain.take(self.now)
        if taken:
            self.taken[instance] = taken
        return [entry.id for entry in taken]

    def plain_cancel(self, id: str) -> bool:
        return self.plain.cancel(id)


class SequenceWorld(VirtualWorld):
    """Requests of a model with sequences."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        assert self.spec.sequence_batching is not None
        self.plain = PlainSequences(self.spec.max_batch_size, self.spec.sequence_batching)

    def make_spec(self) -> ModelSpec:
        draw = self.draw
        max_batch_size = draw.choice((0, 1, 3, 4))
        is_direct = draw.random() < 0.5
        preferred = draw.choice(((), (2,), (1, 3))) if max_batch_size >= 3 and not is_direct else ()
        batching = SequenceBatching(
            strategy="direct" if is_direct else "oldest",
            max_idle_us=draw.choice((6, 20)) * STEP_US,
            is_iterative=draw.random() < 0.3,
            max_queue_delay_us=draw.choice((0, STEP_US, 5 * STEP_US)),
            minimum_slot_utilization=draw.choice((0.0, 0.5, 1.0)) if is_direct else 0.0,
            max_candidate_sequences=draw.choice((0, 1, 5)),
            preferred_batch_sizes=preferred,
        )
        return spec_of(max_batch_size, INPUTS, sequence_batching=batching)

    def begin_request(self) -> None:
        draw, id = self.draw, self.new_id()
        size = draw.choice((3, 3, 3, 3, 4))
        shape = (1, size) if self.spec.max_batch_size else (size,)
        flags: SequenceFlags | None = None
        if draw.random() < 0.9:
            flags = SequenceFlags(draw.randint(1, 6), is_start=draw.random() < 0.4, is_end=draw.random() < 0.3)
        timeout_us = draw.choice((0, 0, 3 * STEP_US, 8 * STEP_US))
        request = queued(id, shapes={"X": shape}, sequence=flags, timeout_us=timeout_us)
        self.submit(request, is_accepted=self.plain.add(id, size, flags, timeout_us, self.now))

    def is_rescheduled(self, request: QueuedRequest) -> bool:
        if not self.plain.batching.is_iterative or self.draw.random() < 0.5:
            return False
        flags = request.request.sequence
        assert flags is not None
        id, size = request.request.id, request.request.inputs[0].shape[-1]
        again = SequenceFlags(flags.correlation_id)
        is_accepted = self.plain.add(id, size, again, request.request.timeout_us, self.now)
        try:
            self.scheduler.reschedule(request, self.now)
        except InferError:
            self.compare(f"reschedule refused {id}", True, not is_accepted)
            return False
        self.compare(f"rescheduled {id}", True, is_accepted)
        self.waiting.append(id)
        return True

    def lose_instance(self, instance: str) -> None:
        work = self.busy.pop(instance)
        for request in work[0].requests if work is not None else ():
            self.compare("retried", self.scheduler.retry(request, self.now), False)
            self.end(request.request.id)
        rejected = self.scheduler.remove_instance(instance, self.now)
        self.plain.remove_instance(instance, self.now)
        ids = [each.request.request.id for each in rejected]
        for id in ids:
            self.waiting.remove(id)
            self.end(id)
        expected = [id for id in self.plain.rejected if id in ids]
        self.plain.rejected = [id for id in self.plain.rejected if id not in ids]
        self.compare("lost", sorted(ids), sorted(expected))

    def plain_add_instance(self, instance: str) -> None:
        self.plain.add_instance(instance, self.now)

    def plain_executed(self, instance: str) -> None:
        self.plain.executed(instance, self.now)

    def plain_rejections(self) -> Sequence[str]:
        self.plain.expire(self.now)
        rejected, self.plain.rejected = self.plain.rejected, []
        return rejected

    def plain_take(self, instance: str) -> list[str | None]:
        return self.plain.take(instance, self.now)

    def plain_cancel(self, id: str) -> bool:
        return self.plain.cancel(id, self.now)
