"""What the router's records of prompts come to: hops between client and step, and the stretch beside streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipstream.cluster.tools.bench.profiling.isolated_runs import IsolatedPrompts
from slipstream.cluster.tools.bench.profiling.request_timeline import (
    MAX_NOISE,
    Overheads,
    RequestTimeline,
    overheads,
    timeline_span,
)

MESSAGE_S, PROMPT_S, EXPOSED_S = 0.001, 0.010, 0.002


def lone(at_s: float, num_tokens: int = 100, is_remote: bool = True) -> RequestTimeline:
    reserved_s = at_s + 2 * MESSAGE_S if is_remote else None
    first_s = (reserved_s or at_s) + 2 * MESSAGE_S + PROMPT_S
    landed_s = first_s + EXPOSED_S if is_remote else None
    return RequestTimeline("p0", num_tokens, at_s, at_s, reserved_s, first_s, landed_s, first_s + 1.0)


def alone_s(num_tokens: int) -> float:
    return 1e-4 * num_tokens


RECORD: dict[str, Any] = {
    "queued_at": "2026-11-22T14:00:00.500000+00:00",
    "prefill": "prefill-0",
    "decode": "decode-0",
    "num_attempts": 1,
    "num_cached_tokens": 0,
    "num_prompt_tokens": 300,
    "timeline": {"placed": 0.1, "reserved": 0.2, "first_token": 0.3, "decode": 0.4, "finished": 0.5},
}


def test_a_record_becomes_moments() -> None:
    timeline = RequestTimeline.of(RECORD)
    assert timeline is not None
    at_s = timeline.queued_s
    assert at_s % 60 == pytest.approx(0.5)
    assert (timeline.worker, timeline.num_tokens, timeline.is_remote) == ("prefill-0", 300, True)
    moments = (timeline.placed_s, timeline.begun_s, timeline.first_token_s, timeline.landed_s, timeline.ended_s)
    assert moments == pytest.approx([at_s + part for part in (0.1, 0.2, 0.3, 0.4, 0.5)])
    local = RequestTimeline.of({**RECORD, "prefill": None})
    assert local is not None
    assert (local.worker, local.is_remote, local.landed_s) == ("decode-0", False, None)
    assert local.begun_s == local.placed_s


@pytest.mark.parametrize(
    "changes",
    [{"num_attempts": 2}, {"num_cached_tokens": 16}, {"timeline": {**RECORD["timeline"], "first_token": None}}],
    ids=["tried again", "cached", "without a token"],
)
def test_a_prompt_that_was_disturbed_tells_nothing(changes: dict[str, Any]) -> None:
    assert RequestTimeline.of({**RECORD, **changes}) is None


def test_hops_are_what_is_left_of_the_way() -> None:
    records = [lone(float(number), 100 + number % 2) for number in range(10)]
    seen = [
        IsolatedPrompts(100, 4 * MESSAGE_S + PROMPT_S + 0.003),
        IsolatedPrompts(101, 4 * MESSAGE_S + PROMPT_S + 0.003),
    ]
    found = overheads(records, seen)
    assert found is not None
    assert found.num_messages == 4
    assert (found.message_s, found.exposed_s, found.client_s) == pytest.approx((MESSAGE_S, EXPOSED_S, 0.003))


def test_most_of_the_prompts_say_how_many_messages_there_are() -> None:
    records = [lone(float(number), is_remote=number < 8) for number in range(20)]
    found = overheads(records, [IsolatedPrompts(100, 1.0)])
    assert isinstance(found, Overheads)
    assert found.num_messages == 2


def test_too_few_remote_prompts_or_none_of_the_same_length_tell_no_hops() -> None:
    assert overheads([lone(float(number)) for number in range(7)], [IsolatedPrompts(100, 1.0)]) is None
    assert overheads([lone(float(number)) for number in range(8)], [IsolatedPrompts(99, 1.0)]) is None


def beside(number: int, factor: float) -> RequestTimeline:
    """A prompt that comes each 0.1 s while the one before it decodes."""
    one = lone(0.1 * number)
    return replace(one, first_token_s=one.begun_s + 2 * MESSAGE_S + factor * alone_s(100), ended_s=one.queued_s + 0.5)


def test_a_stretch_is_what_prompts_take_longer_than_alone() -> None:
    found = timeline_span([beside(number, 1.6) for number in range(20)], alone_s, MESSAGE_S)
    assert found is not None
    assert found.factor == pytest.approx(1.6)
    assert found.noise == pytest.approx(0.0, abs=1e-6)
    spread = timeline_span([beside(number, 1.2 if number % 2 else 2.0) for number in range(21)], alone_s, MESSAGE_S)
    assert spread is not None
    assert spread.factor == pytest.approx(1.6)
    assert 0.2 < spread.noise <= MAX_NOISE


def test_prompts_that_wait_for_each_other_are_not_taken_for_long() -> None:
    """Four come at once and are computed one after the other: each has the time from the one before it to its own."""
    streams = [replace(lone(-1.0, is_remote=False), ended_s=100.0)]
    waiting = []
    for wave in range(4):
        for place in range(1, 5):
            one = lone(1.0 * wave)
            first_s = one.begun_s + 2 * MESSAGE_S + place * 2.0 * alone_s(100)
            waiting.append(replace(one, first_token_s=first_s, landed_s=first_s, ended_s=first_s))
    found = timeline_span([*streams, *waiting], alone_s, MESSAGE_S)
    assert found is not None
    assert found.factor == pytest.approx(2.0)
    assert found.noise == 0.0  # only four of them had the worker for themselves


def test_prompts_that_nobody_decoded_beside_tell_no_stretch() -> None:
    records = [replace(lone(2.0 * number), ended_s=2.0 * number + 0.1) for number in range(20)]
    assert timeline_span(records, alone_s, MESSAGE_S) is None
