"""The spans of requests that are moved, retried, failed or cancelled, and workers that know no traces yet: events of a
real dispatcher, whose time a test makes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import MigrationConfig
from slipstream.router.observability.tracing.request_trace import RequestTrace
from slipstream.router.observability.tracing.span import Span
from slipstream.router.observability.tracing.spans import spans_of
from slipstream.router.protocol.messages import (
    PROTOCOL_VERSION,
    Adopt,
    AttemptWork,
    Credits,
    Failed,
    Frozen,
    Generate,
    HandedOff,
    Prefill,
    Reserve,
    Reserved,
    TraceAttempt,
    WorkSpan,
)
from slipstream.router.protocol.messages.attempt_traces import TRACING_VERSION
from tests.support.router.dispatcher_lab import CONFIG, D, Lab, P, ticket

A, B = PeerId("a", 1), PeerId("b", 1)
OLD = {"version": TRACING_VERSION - 1}
IDS = {"trace_id": "ab" * 16, "trace_span": "cd" * 8}
TRACEPARENT = f"00-{IDS['trace_id']}-{IDS['trace_span']}-01"


@pytest.fixture
def moving() -> Any:
    return Lab(replace(CONFIG, migration=MigrationConfig()))


def spans(lab: Any, end_s: float = 9.0, status: int = 200) -> list[Span]:
    """The spans below that of the whole request, and this one first."""
    record = lab.dispatcher.history.get("r")
    trace = RequestTrace(IDS["trace_id"], IDS["trace_span"], None, "POST", "/v1/completions", 0.0, end_s, status)
    trace.answered([record], {})
    numbers = itertools.count(1)
    return list(spans_of(trace, lambda: f"{next(numbers):016x}"))


def report(lab: Any, worker: PeerId, attempt: int, name: str, error: str = "", **labels: str) -> None:
    lab.say(worker, AttemptWork("r", attempt, (WorkSpan(name, 0.1, 0.0, (), tuple(labels.items()), error=error),)))


def of(found: list[Span], name: str, attempt: int) -> Span:
    [span] = [one for one in found if one.name == name and one.attributes["slipstream.attempt"] == attempt]
    return span


def test_a_retry_is_an_attempt_of_its_own_that_is_linked_to_the_failed_one(lab: Any) -> None:
    lab.join(D, "decode")
    lab.submit("r", **IDS)
    lab.chunk(D, "r", 0, 100)
    lab.now = 1.0
    report(lab, D, 0, "worker.decode", "out of memory")
    lab.say(D, Failed("r", 0, "out of memory", True))
    lab.say(D, Credits(1, 4, 100, 1000))
    lab.now = 2.0
    lab.chunk(D, "r", 1, 101, attempt=1, finish="stop")
    found = spans(lab)
    failed = of(found, "decode", 0)
    assert failed.error is not None
    assert "out of memory" in failed.error
    worker = of(found, "worker.decode", 0)
    assert (worker.parent_id, worker.error) == (failed.span_id, "out of memory")
    first = next(span for span in found if span.attributes.get("slipstream.attempt") == 1)
    assert first.links == (failed.span_id,)
    assert found[0].error is None  # it was answered
    assert all(span.begin_s <= span.end_s for span in found)


def test_a_move_continues_at_the_other_worker_below_its_own_stage(moving: Any) -> None:
    lab = moving
    lab.join(A, "decode")
    lab.submit("r", **IDS)
    lab.chunk(A, "r", 0, 100)
    lab.join(B, "decode")
    lab.now = 1.0
    lab.do(lab.dispatcher.drain(A, lab.now))
    lab.say(B, Reserved("r", 1, 0, ticket(destination=B)))
    lab.say(A, Frozen("r", 0, 1))
    lab.now = 2.0
    report(lab, A, 0, "worker.send", reason="move")
    report(lab, B, 1, "worker.receive", reason="move")
    lab.say(B, HandedOff("r", 1, 1000, 0.1))
    lab.now = 3.0
    report(lab, B, 1, "worker.decode")
    lab.chunk(B, "r", 1, 101, attempt=1, finish="stop")
    found = spans(lab)
    stages = [span for span in found if span.name == "decode"]  # the decision to move ends one of A
    assert [(one.attributes["slipstream.worker"], one.begin_s) for one in stages] == [
        ("a", 0.0),
        ("a", 1.0),
        ("b", 2.0),
        ("b", 3.0),
    ]
    assert [one.error for one in found] == [None] * len(found)
    _, before, after, _ = stages
    assert after.links == (before.span_id,)
    assert of(found, "worker.send", 0).parent_id == before.span_id
    assert of(found, "worker.decode", 1).parent_id == after.span_id
    assert of(found, "worker.receive", 1).parent_id == after.span_id


def test_a_request_that_fails_for_good_has_its_reason_at_the_whole_and_at_the_last_attempt(lab: Any) -> None:
    lab.join(D, "decode")
    lab.submit("r", **IDS)
    for attempt in range(3):
        lab.say(D, Failed("r", attempt, "broken", True))
        lab.say(D, Credits(attempt + 1, 4, 100, 1000))
    found = spans(lab, status=502)
    assert found[0].error is not None
    assert "broken" in found[0].error
    errors = [span for span in found[1:] if span.error]
    assert {span.attributes["slipstream.attempt"] for span in errors} == {0, 1, 2}


def test_a_cancelled_request_has_spans_until_then_and_no_error(lab: Any) -> None:
    lab.join(D, "decode")
    lab.submit("r", **IDS)
    lab.chunk(D, "r", 0, 100)
    lab.now = 1.5
    lab.do(lab.dispatcher.cancel("r", lab.now))
    report(lab, D, 0, "worker.decode")  # which comes after the end
    found = spans(lab, end_s=1.5, status=499)
    assert [span.error for span in found] == [None] * len(found)
    decode = of(found, "decode", 0)
    assert decode.end_s == 1.5
    assert of(found, "worker.decode", 0).parent_id == decode.span_id


def test_the_message_that_begins_an_attempt_comes_behind_that_of_its_trace(pair: Any) -> None:
    pair.submit("r", num_prompt=20, **IDS)
    asked = pair.sent()
    pair.say(D, Reserved("r", 0, 0, ticket()))
    asked += pair.sent()
    assert [(worker, kind) for worker, kind, _ in asked] == [
        (D, TraceAttempt),
        (D, Reserve),
        (P, TraceAttempt),
        (P, Prefill),
    ]
    assert {message.traceparent for _, kind, message in asked if kind is TraceAttempt} == {TRACEPARENT}


def test_a_request_that_is_not_sampled_has_no_messages_about_traces(pair: Any) -> None:
    pair.submit("r", num_prompt=20, trace_id=IDS["trace_id"])
    assert pair.kinds() == [(D, Reserve)]


@pytest.mark.parametrize(("old", "asked"), [(D, [Reserve]), (P, [TraceAttempt, Reserve])])
def test_a_worker_of_an_older_version_is_not_asked_and_serves_beside_one_that_is(
    lab: Any, old: PeerId, asked: list[type]
) -> None:
    assert OLD["version"] < PROTOCOL_VERSION
    lab.join(D, "decode", **(OLD if old is D else {}))
    lab.join(P, "prefill", **(OLD if old is P else {}))
    lab.take()
    lab.submit("r", num_prompt=20, **IDS)
    assert lab.kinds() == [(D, kind) for kind in asked]
    lab.say(D, Reserved("r", 0, 0, ticket()))
    assert lab.kinds() == [(P, kind) for kind in ([TraceAttempt, Prefill] if old is D else [Prefill])]
    new = P if old is D else D
    report(lab, new, 0, "worker.prefill" if new is P else "worker.receive")
    lab.chunk(P, "r", 0, 100)
    lab.say(D, HandedOff("r", 0, 1000, 0.1))
    lab.take()
    lab.chunk(D, "r", 1, 101, finish="stop")
    found = spans(lab)
    assert [span.name for span in found if span.name.startswith("worker.")] == [
        "worker.prefill" if new is P else "worker.receive"
    ]
    assert lab.dispatcher.num_requests == 0


def test_a_sequence_moves_to_a_worker_of_an_older_version_without_its_trace(moving: Any) -> None:
    lab = moving
    lab.join(A, "decode")
    lab.submit("r", **IDS)
    assert [kind for _, kind in lab.kinds()] == [TraceAttempt, Generate]
    lab.chunk(A, "r", 0, 100)
    lab.join(B, "decode", **OLD)
    lab.take()
    lab.do(lab.dispatcher.migrate("r", lab.now))
    assert lab.kinds() == [(B, Adopt)]
