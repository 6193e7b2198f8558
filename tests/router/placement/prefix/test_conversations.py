"""Requests that begin alike go where their beginning is cached: dispatcher, default policy and mock workers in virtual
time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.config.router_config import DispatchConfig
from slipstream.workers.mock.mock_profile import MockProfile
from tests.support.router.mock_cluster import PROFILE, MockCluster

PAGE_TOKENS = PROFILE.page_tokens
LINES = [None, 0, 10_000]  # prefill: decided by score, always remote, always on the decode worker


def words(seed: int, count: int) -> list[int]:
    return [20 + (seed * 7919 + 31 * i) % 900 for i in range(count)]


@pytest.mark.parametrize("line", LINES)
def test_each_turn_of_a_conversation_finds_the_one_before(line: int | None) -> None:
    cluster = MockCluster(DispatchConfig(local_prefill_max_tokens=line))
    prompt = words(1, 100)
    cached = []
    for turn in range(6):
        cluster.ask(f"other-{turn}", words(100 + turn, 150))  # somebody else, in between
        answer = cluster.ask(f"turn-{turn}", prompt, num_output=40)
        cached.append(answer.num_cached)
        known = len(prompt)
        prompt = [*prompt, *answer.token_ids, *words(2 + turn, 60)]
        # A prefill group knows the last prompt, a decode worker the answer to it as well.
        assert answer.num_cached <= known
    assert cached[0] == 0
    for turn in range(1, 6):
        least = 100 * turn if line != 0 else 100 * (turn - 1) + 100
        assert cached[turn] >= least // PAGE_TOKENS * PAGE_TOKENS - PAGE_TOKENS, cached
    assert cached == sorted(set(cached))
    cluster.check_index()
    status = cluster.dispatcher.snapshot(cluster.now_s).prefix_index
    assert status.confirmed_tokens == status.predicted_tokens == status.found_tokens == sum(cached)
    assert status.num_gaps == 0


@pytest.mark.parametrize("line", LINES)
def test_salts_keep_equal_prompts_apart(line: int | None) -> None:
    cluster = MockCluster(DispatchConfig(local_prefill_max_tokens=line))
    prompt = words(1, 200)
    assert cluster.ask("a", prompt, salt="one").num_cached == 0
    assert cluster.ask("b", prompt, salt="two").num_cached == 0
    assert cluster.ask("c", prompt, salt="one").num_cached >= 192 - PAGE_TOKENS


def test_a_conversation_leaves_a_worker_that_has_no_room() -> None:
    profile = MockProfile(max_slots=1, step_s=0.002, prefill_token_s=1e-4)
    cluster = MockCluster(num_prefill=0, profile=profile)
    prompt = words(1, 160)
    first = cluster.ask("first", prompt)
    (home,) = first.workers
    # Not a long answer: it would shun the share of the worker's time that the first prompt took a moment ago.
    occupant = cluster.submit("occupant", [*prompt, *words(5, 20)], num_output=300)
    assert occupant.workers == [home], "it begins alike"
    second = cluster.submit("second", [*prompt, *first.token_ids, *words(6, 20)])
    cluster.run()
    assert second.finish is not None
    assert second.finish.error is None
    assert second.workers != [home]
    cluster.check_index()


def test_a_conversation_leaves_a_worker_whose_batch_would_cost_more_than_its_prompt() -> None:
    profile = MockProfile(step_s=0.002, prefill_token_s=1e-6, decode_token_s=0.005)
    cluster = MockCluster(num_prefill=0, profile=profile)
    prompt = words(1, 40)
    cluster.ask("first", prompt, num_output=50)
    # Long answers keep that worker busy; they went there for the same beginning.
    for number in range(24):
        cluster.submit(f"busy-{number}", [*prompt, *words(50 + number, 5)], num_output=2000)
    cluster.run(until_s=cluster.now_s + 5.0)
    homes = [cluster.answers[f"busy-{number}"].workers[0] for number in range(24)]
    assert len(set(homes)) == 2, "a beginning of 40 tokens is not worth it"


def test_what_is_placed_is_expected_until_the_worker_has_told_it() -> None:
    cluster = MockCluster(DispatchConfig(local_prefill_max_tokens=0))

    def sizes() -> tuple[int, int]:
        status = cluster.dispatcher.snapshot(cluster.now_s).prefix_index
        return status.num_expected, status.num_entries - status.num_expected

    cluster.submit("r", words(1, 160), num_output=1)
    assert sizes() == (2 * 10, 0)  # at the prefill group and at the decode worker
    cluster.run()
    num_expected, num_held = sizes()
    assert num_held >= 10
    assert num_expected <= 10, "the decode worker was cancelled before its pages came"
    cluster.ask("s", words(1, 160), num_output=20)
    assert sizes()[0] == 0
    cluster.check_index()


def test_a_lost_worker_is_forgotten_and_one_that_connects_anew_tells_what_it_holds() -> None:
    cluster = MockCluster(num_prefill=0, num_decode=2)
    prompt = words(1, 200)
    first = cluster.ask("first", prompt)
    (home,) = first.workers
    cluster.lose(home)
    assert cluster.ask("second", prompt).num_cached == 0
    worker = cluster.join(home, "decode", epoch=2)
    cluster.run()
    assert cluster.dispatcher.known_blocks(worker.peer) == frozenset()
    cluster.check_index()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_index_and_caches_agree_after_any_load_on_small_caches(data: st.DataObject) -> None:
    profile = MockProfile(
        page_tokens=4, num_pages=24, max_slots=4, max_step_tokens=16, step_s=0.002, prefill_token_s=1e-4
    )
    cluster = MockCluster(num_prefill=data.draw(st.integers(0, 2)), profile=profile)
    for number in range(data.draw(st.integers(1, 25))):
        prompt = data.draw(st.lists(st.sampled_from((20, 21)), min_size=1, max_size=30))
        salt = data.draw(st.sampled_from(("", "s")))
        cluster.submit(f"r{number}", prompt, data.draw(st.integers(1, 20)), salt=salt)
        match data.draw(st.sampled_from(("go on", "go on", "wait", "cancel", "lose"))):
            case "wait":
                cluster.run(until_s=cluster.now_s + 0.02)
            case "cancel":
                cluster._perform(cluster.dispatcher.cancel(f"r{number // 2}", cluster.now_s))
            case "lose":
                cluster.lose("d0")
                cluster.join("d0", "decode", epoch=number + 2)
    cluster.run()
    cluster.check_index()
    assert not cluster.closed
