"""Sessions of agents as a workload."""

from __future__ import annotations

from itertools import islice, pairwise
from statistics import median

import pytest

from slipstream.cluster.tools.workload.agents import TOOLS, AgentMix, parse_agents
from slipstream.cluster.tools.workload.arrival import BLOCK_TOKENS, Arrival
from slipstream.cluster.tools.workload.workload import open_workload


def turns_of(first: Arrival) -> list[Arrival]:
    turns = [first]
    while turns[-1].then is not None:
        turns.append(turns[-1].then)
    return turns


SESSIONS = [turns_of(first) for first in islice(AgentMix(most_tokens=10_000_000, leave=0.0).arrivals(0), 300)]


def test_sessions_have_the_sizes_that_are_told_of_agents() -> None:
    assert 35 <= median(len(turns) for turns in SESSIONS) <= 52
    assert 400 <= median(turn.output_length for turns in SESSIONS for turn in turns) <= 490
    assert 110_000 <= median(turns[-1].input_length for turns in SESSIONS) <= 230_000
    again = sum(before.input_length for turns in SESSIONS for before, _ in pairwise(turns))
    assert again / sum(turn.input_length for turns in SESSIONS for turn in turns[1:]) > 0.95


def test_calls_take_as_long_as_in_the_trace() -> None:
    pauses = sorted(after.at_s for turns in SESSIONS for turn, after in pairwise(turns) if turn.tools)
    half, nine_in_ten, nearly_all = (pauses[int(len(pauses) * share)] for share in (0.5, 0.9, 0.99))
    assert 0.1 <= half <= 0.4
    assert 7.0 <= nine_in_ten <= 22.0
    assert 120.0 <= nearly_all <= 330.0
    assert sum(tool.share for tool in TOOLS) == pytest.approx(1.0)


def test_a_prompt_begins_with_the_one_before_and_all_with_the_same_system_prompt() -> None:
    for turns in SESSIONS[:20]:
        for before, after in pairwise(turns):
            assert after.input_length > before.input_length + before.output_length
            assert after.blocks[: len(before.blocks)] == before.blocks
    first, second = SESSIONS[0][0], SESSIONS[1][0]
    num_shared = AgentMix().shared_tokens // BLOCK_TOKENS
    assert first.blocks[:num_shared] == second.blocks[:num_shared]
    assert first.blocks[num_shared] != second.blocks[num_shared]


def test_the_same_seed_gives_the_same_sessions_and_speed_shortens_the_pauses() -> None:
    plain, fast = (list(open_workload("agents,rate=1", 3, speed)) for speed in (1.0, 4.0))
    assert plain == list(open_workload("agents,rate=1", 3))
    for one, other in zip(plain, fast, strict=True):
        for turn, faster in zip(turns_of(one), turns_of(other), strict=True):
            assert faster.at_s == pytest.approx(turn.at_s / 4.0)
            assert faster.blocks == turn.blocks


def test_they_may_come_beside_other_requests() -> None:
    workload = open_workload("agents,rate=1+documents,rate=1", 50)
    assert workload.has_shared_blocks
    kinds = {arrival.tools is None for arrival in workload}
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("agents,rate=0", "rate"),
        ("agents,turns=0", "turns"),
        ("agents,most=100", "most"),
        ("agents,leave=2", "leave"),
        ("agents,pause=none", "pause"),
        ("agents,pause=inf", "pause"),
        ("agents,burst=2", "burst"),
    ],
)
def test_a_bad_value_is_named(text: str, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        parse_agents(text)
