"""What a worker notes of traced attempts: remote and local ones, moved, retried, failed and cancelled ones."""

from __future__ import annotations

import pytest

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferKey
from slipstream.router.protocol.messages import (
    Adopt,
    AttemptWork,
    Cancel,
    EngineRequest,
    Failed,
    Generate,
    Migrate,
    Prefill,
    Reserve,
    Reserved,
    SamplingParams,
    Start,
    TokenChunk,
    TraceAttempt,
    WorkSpan,
    pack_ids,
)
from slipstream.workers.interface.page_transfers import TransferOutcome
from slipstream.workers.telemetry.tracing.attempt_span import MAX_EVENTS, AttemptSpan, StepSummary
from slipstream.workers.telemetry.tracing.attempt_traces import MAX_ATTEMPTS, AttemptTraces

HERE, THERE = PeerId("decode-0", 1), PeerId("decode-1", 4)
KEY = ("r", 0)


def request(attempt: int = 0, output: tuple[int, ...] = ()) -> EngineRequest:
    return EngineRequest("r", attempt, pack_ids(range(10)), pack_ids(output), SamplingParams(5))


def ticket(transfer_id: int = 7, destination: PeerId = THERE) -> HandoffTicket:
    return HandoffTicket(transfer_id, destination, (), 0, 1, 1, 1, 1, 1)


def chunk(index: int, finish: str | None = None, attempt: int = 0, cached: int = 0) -> TokenChunk:
    return TokenChunk("r", attempt, index, (1,), finish_reason=finish, num_cached_tokens=cached)  # type: ignore[arg-type]


def sent(
    transfer_id: int = 7, destination: PeerId = THERE, failure: str | None = None, *, cancelled: bool = False
) -> TransferOutcome:
    key = TransferKey(destination, transfer_id)
    return TransferOutcome(key, failure, 4_000_000, 0.002, cancelled)


def traced(*attempts: int) -> AttemptTraces:
    traces = AttemptTraces("shm")
    for attempt in attempts or (0,):
        traces.begin(TraceAttempt("r", attempt, "00-aa-bb-01"))
    return traces


def spans(traces: AttemptTraces, now_s: float = 10.0) -> dict[str, WorkSpan]:
    """All that ended, by name; each of them once."""
    found = [span for work in traces.take(now_s) for span in work.spans]
    assert len({span.name for span in found}) == len(found)
    return {span.name: span for span in found}


def test_a_local_request_is_a_prefill_and_a_decode() -> None:
    traces = traced()
    traces.heard(Generate(1, request(output=(1, 2))), 1.0)
    traces.stepped([], [(KEY, 8)], 3, 1.5, 2.0)
    traces.stepped([chunk(2, cached=4)], [(KEY, 4)], 0, 2.0, 3.0)
    traces.stepped([chunk(3)], [], 2, 3.0, 3.5)
    traces.stepped([chunk(4, "length")], [], 4, 3.5, 4.0)
    found = spans(traces)
    prefill, decode = found["worker.prefill"], found["worker.decode"]
    figures = dict(prefill.figures)
    assert (figures["tokens"], figures["computed_tokens"], figures["cached_tokens"]) == (12, 12, 4)
    assert (figures["queue_s"], figures["steps"], figures["batch.mean"], figures["batch.max"]) == (0.5, 2, 2.5, 4)
    assert (prefill.begin_age_s, prefill.end_age_s) == (9.0, 7.0)
    assert (decode.begin_age_s, decode.end_age_s) == (7.0, 6.0)
    assert dict(decode.figures)["output_tokens"] == 2
    assert dict(decode.labels)["outcome"] == "length"
    assert [dict(event.figures)["batch"] for event in decode.events] == [2.0, 4.0]
    assert traces.attempts == {}


def test_a_prefill_worker_reports_the_prompt_and_the_pages_that_it_sends() -> None:
    traces = traced()
    traces.heard(Prefill(1, request(), ticket()), 1.0)
    traces.stepped([chunk(0)], [(KEY, 10)], 0, 1.0, 2.0)
    assert list(spans(traces)) == ["worker.prefill"]
    assert list(traces.attempts) == [KEY]  # until the pages have left
    traces.transfer_ended(sent(), 3.0)
    send = spans(traces)["worker.send"]
    assert dict(send.labels) == {"transport": "shm", "to": "decode-1"}
    assert dict(send.figures) == {"bytes": 4e6, "seconds": 0.002, "gb_per_s": 2.0}
    assert (send.begin_age_s, send.end_age_s, send.error) == (9.0, 7.0, "")
    assert traces.attempts == {}


def test_a_decode_worker_reports_the_pages_that_it_receives_and_its_tokens() -> None:
    traces = traced()
    traces.heard(Reserve(1, request(), PeerId("prefill-0", 2), 1), 1.0)
    traces.said([Reserved("r", 0, 3, ticket(destination=HERE))], 1.5)
    traces.transfer_ended(sent(destination=HERE), 3.0)
    traces.heard(Start("r", 0, (1,)), 3.5)
    traces.stepped([chunk(1, "stop")], [], 1, 3.5, 4.0)
    found = spans(traces)
    receive, decode = found["worker.receive"], found["worker.decode"]
    assert dict(receive.labels) == {"transport": "shm", "source": "prefill-0"}
    assert dict(receive.figures)["cached_tokens"] == 3
    assert (receive.begin_age_s, receive.end_age_s) == (9.0, 7.0)
    assert (dict(decode.labels)["outcome"], decode.begin_age_s) == ("stop", 6.5)
    assert traces.attempts == {}


@pytest.mark.parametrize("freeze", [False, True])
def test_a_move_is_a_send_at_its_source_that_names_the_attempt_that_it_becomes(freeze: bool) -> None:
    traces = traced()
    traces.heard(Generate(1, request()), 1.0)
    traces.stepped([chunk(0)], [(KEY, 10)], 0, 1.0, 2.0)
    traces.heard(Migrate("r", 0, 1, ticket(9), freeze), 2.5)
    traces.heard(Cancel("r", 0), 3.0)  # it goes on elsewhere
    found = spans(traces)
    assert dict(found["worker.decode"].labels)["outcome"] == "cancelled"
    assert list(traces.attempts) == [KEY]
    traces.transfer_ended(sent(9), 4.0)
    send = spans(traces)["worker.send"]
    assert dict(send.labels)["reason"] == "move"
    assert dict(send.labels)["round"] == ("last" if freeze else "copy")
    assert dict(send.figures)["to_attempt"] == 1
    assert traces.attempts == {}


def test_a_move_is_a_receive_at_its_destination() -> None:
    traces = traced(1)
    traces.heard(Adopt(1, request(1, (5,)), HERE, 1, 8), 1.0)
    traces.said([Reserved("r", 1, 0, ticket(9))], 1.1)
    traces.transfer_ended(sent(9), 2.0)
    traces.heard(Start("r", 1, ()), 2.0)
    traces.stepped([chunk(1, "length", attempt=1)], [], 0, 2.0, 2.5)
    found = spans(traces)
    assert dict(found["worker.receive"].labels) == {"transport": "shm", "source": "decode-0", "reason": "move"}
    assert dict(found["worker.decode"].labels)["outcome"] == "length"


def test_a_move_that_its_destination_gives_up_is_a_send_with_an_error_and_the_request_goes_on() -> None:
    traces = traced()
    traces.heard(Generate(1, request()), 1.0)
    traces.stepped([chunk(0)], [(KEY, 10)], 0, 1.0, 2.0)
    traces.heard(Migrate("r", 0, 1, ticket(9), False), 2.5)
    traces.said([Failed("r", 1, "the peer is gone", True)], 3.0)
    assert spans(traces)["worker.send"].error == "the peer is gone"
    traces.stepped([chunk(1, "length")], [], 0, 3.0, 4.0)
    assert spans(traces)["worker.decode"].error == ""
    assert traces.attempts == {}


def test_a_failed_attempt_has_its_error_at_all_that_was_open() -> None:
    traces = traced()
    traces.heard(Prefill(1, request(), ticket()), 1.0)
    traces.stepped([], [(KEY, 5)], 0, 1.0, 2.0)
    traces.said([Failed("r", 0, "out of pages", True)], 3.0)
    found = spans(traces)
    assert {name: span.error for name, span in found.items()} == dict.fromkeys(
        ("worker.prefill", "worker.send"), "out of pages"
    )
    assert traces.attempts == {}


def test_a_transfer_that_fails_has_its_error_and_one_that_is_given_up_has_none() -> None:
    for outcome, error, label in (
        (sent(failure="no route"), "no route", None),
        (sent(cancelled=True), "", "cancelled"),
    ):
        traces = traced()
        traces.heard(Prefill(1, request(), ticket()), 1.0)
        traces.transfer_ended(outcome, 2.0)
        send = spans(traces)["worker.send"]
        assert (send.error, dict(send.labels).get("outcome")) == (error, label)


def test_an_attempt_that_is_cancelled_before_its_pages_come_ends_its_receive() -> None:
    traces = traced()
    traces.heard(Reserve(1, request(), PeerId("prefill-0", 2), 1), 1.0)
    traces.heard(Cancel("r", 0), 2.0)
    receive = spans(traces)["worker.receive"]
    assert (receive.begin_age_s, receive.end_age_s, receive.error) == (9.0, 8.0, "")
    assert traces.attempts == {}


def test_a_cancelled_prefill_that_never_began_ends_its_send_as_well() -> None:
    traces = traced()
    traces.heard(Prefill(1, request(), ticket()), 1.0)
    traces.heard(Cancel("r", 0), 2.0)
    assert set(spans(traces)) == {"worker.prefill", "worker.send"}
    assert traces.attempts == {}


def test_a_retried_attempt_is_apart_from_the_one_before() -> None:
    traces = traced(0, 1)
    traces.heard(Generate(1, request()), 1.0)
    traces.said([Failed("r", 0, "lost", True)], 2.0)
    traces.heard(Generate(2, request(1)), 3.0)
    traces.stepped([chunk(0, "length", attempt=1)], [(("r", 1), 10)], 0, 3.0, 4.0)
    by_attempt = {work.attempt: {span.name: span.error for span in work.spans} for work in traces.take(5.0)}
    assert by_attempt == {0: {"worker.prefill": "lost"}, 1: {"worker.prefill": "", "worker.decode": ""}}


def test_a_request_that_is_not_traced_leaves_nothing() -> None:
    traces = AttemptTraces()
    traces.heard(Generate(1, request()), 1.0)
    traces.stepped([chunk(0, "length")], [(KEY, 10)], 0, 1.0, 2.0)
    traces.transfer_ended(sent(), 2.0)
    traces.said([Failed("r", 0, "lost", True)], 3.0)
    assert (traces.take(4.0), traces.attempts) == ([], {})


def test_many_attempts_take_bounded_memory() -> None:
    traces = AttemptTraces()
    for number in range(MAX_ATTEMPTS + 3):
        traces.begin(TraceAttempt(f"r{number}", 0, "00-aa-bb-01"))
    assert len(traces.attempts) == MAX_ATTEMPTS
    assert ("r2", 0) not in traces.attempts


@pytest.mark.parametrize("num_steps", [1, MAX_EVENTS, MAX_EVENTS + 1, 1000, 4097])
def test_any_number_of_steps_are_few_events_that_leave_out_none(num_steps: int) -> None:
    summary, span = StepSummary(), AttemptSpan("worker.decode", 0.0, {}, {})
    for step in range(num_steps):
        summary.add(2, 1 + step % 3, float(step), step + 0.5)
    summary.describe(span)
    assert len(span.steps) <= MAX_EVENTS
    assert sum(group.num_steps for group in span.steps) == span.figures["steps"] == num_steps
    assert sum(group.num_tokens for group in span.steps) == span.figures["output_tokens"] == 2 * num_steps
    times = [(group.began_s, group.ended_s) for group in span.steps]
    assert (times[0][0], times[-1][1]) == (0.0, num_steps - 0.5)
    assert times == sorted(times)


def test_a_report_has_what_ended_once_by_attempt() -> None:
    traces = traced(0, 1)
    traces.heard(Generate(1, request()), 1.0)
    traces.heard(Generate(1, request(1)), 1.0)
    traces.heard(Cancel("r", 0), 2.0)
    traces.heard(Cancel("r", 1), 2.0)
    works = traces.take(3.0)
    assert [(type(work), work.attempt) for work in works] == [(AttemptWork, 0), (AttemptWork, 1)]
    assert traces.take(3.0) == []
