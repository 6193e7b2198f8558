"""Requests at given times make the batches that Triton 2.51 makes of them, with one instance and the Python backend.

The expected batches and errors were recorded there. What depends on its threads is left out: it forms the next batch
ahead while an instance is busy, and looks for time-outs every 500 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from slipstream.router.batching.scheduler import RequestBatch
from slipstream.router.batching.scheduler_choice import scheduler_of
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import SequenceFlags
from slipstream.router.tensors.model_spec import DynamicBatching, ModelSpec, QueuePolicy, SequenceBatching, TensorSpec
from tests.support.router.batching.made_requests import places, queued, spec_of

INSTANCE = "m_0_0"
FULL = "Exceeds maximum queue size"
IDLE = "inference request for sequence {} to model 'm' must specify the START flag on the first request of the sequence"
LATE_SEQUENCE = "timeout of the corresponding sequence has been expired"
NO_ID = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"


@dataclass(frozen=True)
class Event:
    """A request with one variable input of `size` elements a row, which takes `busy_ms` to execute."""

    at_ms: int
    id: str
    busy_ms: int = 0
    rows: int = 1
    size: int = 2
    priority: int = 0
    timeout_ms: int = 0
    sequence: SequenceFlags | None = None


def series(num: int, start_ms: int = 60, gap_ms: int = 15, rows: int = 1) -> list[Event]:
    return [Event(start_ms + gap_ms * number, f"r{number}", rows=rows) for number in range(num)]


def step(at_ms: int, id: str, flags: str = "", busy_ms: int = 0, size: int = 2, timeout_ms: int = 0) -> Event:
    """A request of the sequence whose letter begins its id; "S" and "E" are START and END."""
    sequence = SequenceFlags(ord(id[0]) - ord("a") + 1, is_start="S" in flags, is_end="E" in flags)
    return Event(at_ms, id, busy_ms, size=size, timeout_ms=timeout_ms, sequence=sequence)


def dynamic(max_batch_size: int = 8, **settings: object) -> ModelSpec:
    batching = DynamicBatching(**settings)  # type: ignore[arg-type]
    return spec_of(max_batch_size, (TensorSpec("X", "FP32", (-1,)),), dynamic_batching=batching)


def sequences(max_batch_size: int, max_idle_us: int = 3_000_000, **settings: object) -> ModelSpec:
    batching = SequenceBatching(max_idle_us=max_idle_us, **settings)  # type: ignore[arg-type]
    return spec_of(max_batch_size, (TensorSpec("X", "FP32", (-1,)),), sequence_batching=batching)


def replay(spec: ModelSpec, events: list[Event]) -> tuple[list[str], dict[str, str]]:
    """The batches, as ids by place with `-` for an empty one, and the errors by id."""
    scheduler = scheduler_of(spec)
    scheduler.add_instance(INSTANCE, 0.0)
    busy_s = {event.id: event.busy_ms / 1e3 for event in events}
    batches: list[str] = []
    errors: dict[str, str] = {}
    now, running, over_s = 0.0, None, 0.0
    pending = list(events)
    while True:
        times = [pending[0].at_ms / 1e3] if pending else []
        times += [over_s] if running is not None else []
        times += [max(now, scheduler.next_time)] if scheduler.next_time is not None else []
        if not times:
            return batches, errors
        now = min(times)
        if running is not None and over_s <= now:
            scheduler.executed(running, INSTANCE, now)
            running = None
        while pending and pending[0].at_ms / 1e3 <= now:
            event = pending.pop(0)
            request = queued(
                event.id,
                event.rows,
                shapes={"X": (event.rows, event.size)},
                priority=event.priority,
                timeout_us=event.timeout_ms * 1000,
                sequence=event.sequence,
            )
            try:
                scheduler.add(request, now)
            except InferError as error:
                errors[event.id] = error.message
        for rejected in scheduler.due(now):
            errors[rejected.request.request.id] = rejected.error.message
        batch: RequestBatch | None = scheduler.take(INSTANCE, now) if running is None else None
        if batch is not None:
            batches.append(" ".join(id or "-" for id in places(batch)))
            running, over_s = batch, now + max(busy_s[request.request.id] for request in batch.requests)


BUSY = Event(0, "busy", busy_ms=400)
PREFERRED_4 = dynamic(preferred_batch_sizes=(4,))
PREFERRED_4_DELAY = dynamic(preferred_batch_sizes=(4,), max_queue_delay_us=200_000)
PREFERRED_2_4_DELAY = dynamic(preferred_batch_sizes=(2, 4), max_queue_delay_us=200_000)
PRIORITIES = dynamic(4, priority_levels=3, default_priority_level=2)


@pytest.mark.parametrize(
    ("spec", "events", "expected"),
    [
        (spec_of(8), [BUSY, *series(3)], ["busy", "r0", "r1", "r2"]),
        (dynamic(), [BUSY, *series(10)], ["busy", "r0 r1 r2 r3 r4 r5 r6 r7", "r8 r9"]),
        (dynamic(), [BUSY, *series(3, rows=3)], ["busy", "r0 r1", "r2"]),
        (PREFERRED_4, [BUSY, *series(6)], ["busy", "r0 r1 r2 r3", "r4 r5"]),
        (PREFERRED_4, [BUSY, *series(10)], ["busy", "r0 r1 r2 r3", "r4 r5 r6 r7", "r8 r9"]),
        (PREFERRED_4_DELAY, series(3), ["r0 r1 r2"]),
        (PREFERRED_4_DELAY, series(6, gap_ms=10), ["r0 r1 r2 r3", "r4 r5"]),
        (PREFERRED_4_DELAY, [BUSY, *series(6)], ["busy r0 r1 r2", "r3 r4 r5"]),
        (PREFERRED_4_DELAY, [Event(0, "a", rows=3), Event(20, "b", rows=2)], ["a", "b"]),
        (PREFERRED_2_4_DELAY, series(3), ["r0 r1", "r2"]),
        (
            PREFERRED_2_4_DELAY,
            [Event(0, "busy", busy_ms=300, rows=4), *series(5, start_ms=20, gap_ms=20)],
            ["busy", "r0 r1 r2 r3 r4"],
        ),
        (
            dynamic(),
            [BUSY, Event(60, "a"), Event(80, "b", size=3), Event(100, "c", size=3), Event(120, "d")],
            ["busy", "a", "b c", "d"],
        ),
        (
            PRIORITIES,
            [
                BUSY,
                *(
                    Event(60 + place, f"p{priority}", priority=priority)
                    for place, priority in enumerate((2, 3, 1, 0, 9))
                ),
                Event(160, "q1", priority=1),
            ],
            ["busy", "p1 q1 p2 p0", "p9 p3"],
        ),
    ],
)
def test_batches_of_requests_without_sequence(spec: ModelSpec, events: list[Event], expected: list[str]) -> None:
    assert replay(spec, events) == (expected, {})


def test_what_does_not_fit_into_a_queue_is_refused() -> None:
    spec = dynamic(1, default_queue_policy=QueuePolicy(max_queue_size=2))
    assert replay(spec, [BUSY, *series(4)]) == (["busy", "r0", "r1"], {"r2": FULL, "r3": FULL})


def test_delayed_requests_run_after_those_in_time() -> None:
    policy = QueuePolicy(default_timeout_us=200_000, timeout_action="DELAY")
    events = [BUSY, Event(60, "a"), Event(80, "b"), Event(300, "c"), Event(320, "d")]
    assert replay(dynamic(1, default_queue_policy=policy), events) == (["busy", "c", "d", "a", "b"], {})


SHORT_IDLE = sequences(1, max_idle_us=400_000)


@pytest.mark.parametrize(
    ("spec", "events", "batches", "errors"),
    [
        (
            sequences(3),
            [
                step(0, "a1", "S", busy_ms=200),
                step(40, "b1", "S"),
                step(60, "c1", "S"),
                step(80, "d1", "S"),
                step(100, "b2", "E"),
                step(120, "c2"),
                step(500, "c3"),
                step(700, "a2", "E"),
                step(800, "e1", "SE"),
            ],
            ["a1", "- b1 c1", "- b2 c2", "- d1", "- - c3", "a2", "e1"],
            {},
        ),
        (
            sequences(3),
            [
                step(0, "a1", "S", busy_ms=300),
                step(40, "b1", "S", size=3),
                step(60, "c1", "S"),
                step(80, "a2", "E", size=3),
                step(90, "b2", "E"),
                step(110, "c2", "E"),
            ],
            ["a1", "a2 b1 -", "- b2 c1", "- - c2"],
            {},
        ),
        (
            sequences(4, max_queue_delay_us=200_000, minimum_slot_utilization=0.75),
            [
                step(0, "a1", "S"),
                step(50, "b1", "S"),
                step(400, "a2"),
                step(420, "b2"),
                step(440, "c1", "S"),
                step(700, "a3", "E"),
                step(950, "b3", "E"),
                step(1200, "c2", "E"),
            ],
            ["a1 b1", "a2 b2 c1", "a3", "- b3", "- - c2"],
            {},
        ),
        (
            sequences(2, strategy="oldest", max_candidate_sequences=3),
            [
                step(0, "a1", "S", busy_ms=200),
                step(40, "a2"),
                step(50, "b1", "S"),
                step(60, "c1", "S"),
                step(70, "d1", "S"),
                step(80, "d2", "E"),
                step(400, "a3", "E"),
                step(500, "b2", "E"),
                step(600, "c2", "E"),
            ],
            ["a1", "b1 c1", "a2", "a3", "d1", "d2", "b2", "c2"],
            {},
        ),
        (
            sequences(4, strategy="oldest", preferred_batch_sizes=(2,), max_queue_delay_us=200_000),
            [
                step(0, "a1", "S"),
                step(20, "a2"),
                step(60, "b1", "S"),
                step(400, "a3", "E"),
                step(405, "b2"),
                step(450, "c1", "S"),
                step(1000, "b3", "E"),
                step(1200, "c2", "E"),
            ],
            ["a1 b1", "a2", "a3 b2", "c1", "b3 c2"],
            {},
        ),
        (
            SHORT_IDLE,
            [step(0, "a1", "S"), step(100, "b1", "S"), step(200, "a2"), step(900, "a3"), step(1600, "b2", "E")],
            ["a1", "a2", "b1"],
            {"a3": IDLE.format(1), "b2": IDLE.format(2)},
        ),
        (
            SHORT_IDLE,
            [step(0, "a1", "S"), step(10, "b1", "S", timeout_ms=100), step(150, "b2"), step(200, "a2", "E")],
            ["a1", "a2"],
            {"b1": LATE_SEQUENCE, "b2": IDLE.format(2)},
        ),
        (
            SHORT_IDLE,
            [
                step(0, "a1", "S", busy_ms=100),
                step(50, "a2", "S"),
                step(200, "b1", "S"),
                step(210, "a3", "E"),
                step(400, "b2", "E"),
            ],
            ["a1", "a2", "a3", "b1", "b2"],
            {},
        ),
        (
            SHORT_IDLE,
            [Event(0, "x"), step(10, "c1"), step(20, "c2", "SE")],
            ["c2"],
            {"x": NO_ID, "c1": IDLE.format(3)},
        ),
    ],
)
def test_batches_of_sequences(spec: ModelSpec, events: list[Event], batches: list[str], errors: dict[str, str]) -> None:
    assert replay(spec, events) == (batches, errors)
