"""Where a request goes, given a line between short and long prompts and the credits: the same for all policies."""

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import Credits
from slipstream.router.registry.capacity import refusal
from slipstream.router.requests.placement_decision import FAILED_BEFORE, Placement, Wait
from tests.support.router.placed_workers import NoPrefixes, placer, request, where, worker

LOCAL_MAX = 100
POLICIES = ["slo", "kv", "least_loaded", "round_robin", "isl_threshold"]


@pytest.fixture(params=POLICIES)
def policy(request):
    return request.param


def put(policy, num_tokens, decodes, prefills, avoid=frozenset(), **config):
    state = request(num_tokens)
    state.failed_on = set(avoid)
    config.setdefault("local_prefill_max_tokens", LOCAL_MAX)
    return placer(decodes, prefills, policy=policy, **config).place(state, 0.0)


def test_a_short_prompt_stays_on_the_decode_worker(policy):
    assert where(put(policy, 100, [worker("decode", "d")], [worker("prefill", "p")])) == ("short_prompt", "d", None)


def test_a_long_prompt_goes_to_a_prefill_group(policy):
    assert where(put(policy, 101, [worker("decode", "d")], [worker("prefill", "p")])) == ("long_prompt", "d", "p")


def test_a_line_does_not_count_on_what_is_only_believed_to_be_cached(policy):
    decode, group = worker("decode", "d"), worker("prefill", "p")
    views = NoPrefixes({decode: 160})
    tried = placer([decode], [group], views=views, policy=policy, local_prefill_max_tokens=LOCAL_MAX)
    assert where(tried.place(request(200), 0.0)) == ("long_prompt", "d", "p")
    assert tried.reconsider(request(200), decode, group, 99, 0.0) is None
    found = tried.reconsider(request(200), decode, group, 100, 0.0)
    assert found is not None
    assert (found.reason, found.prefill, found.decode) == ("cached_prefix", None, decode.peer)


@pytest.mark.parametrize(
    ("name", "cached", "expected"),
    [
        ("round_robin", 0, ("policy_remote", "d", "p")),
        ("least_loaded", 0, ("policy_remote", "d", "p")),
        ("kv", 0, ("policy_remote", "d", "p")),
        ("kv", 192, ("cached_prefix", "d", None)),
        ("isl_threshold", 0, ("short_prompt", "d", None)),
    ],
)
def test_without_a_limit_the_reason_is_the_policys_own(name, cached, expected):
    decode = worker("decode", "d")
    tried = placer([decode], [worker("prefill", "p")], views=NoPrefixes({decode: cached}), policy=name)
    assert where(tried.place(request(200), 0.0)) == expected


def test_a_request_may_draw_its_own_line(policy):
    tried = placer([worker("decode", "d")], [worker("prefill", "p")], policy=policy)
    assert where(tried.place(request(2, local_prefill_max_tokens=0), 0.0)) == ("long_prompt", "d", "p")
    assert where(tried.place(request(2000, local_prefill_max_tokens=2000), 0.0)) == ("short_prompt", "d", None)


def test_without_prefill_groups_a_long_prompt_is_local(policy):
    assert where(put(policy, 500, [worker("decode", "d")], [])) == ("no_prefill_group", "d", None)


def test_a_prompt_that_no_prefill_group_can_ever_hold_is_local(policy):
    groups = [worker("prefill", "p", pages=10), worker("prefill", "q", max_model_len=200)]
    assert where(put(policy, 500, [worker("decode", "d")], groups)) == ("prefill_too_small", "d", None)


def test_full_decode_workers_make_it_wait_for_decode(policy):
    assert put(policy, 50, [worker("decode", "d", free=(0, 100, 0))], []) == Wait("decode")
    assert put(policy, 50, [worker("decode", "d", free=(4, 3, 0))], []) == Wait("decode")  # 51 tokens need 4 pages


def test_busy_prefill_groups_make_a_long_prompt_wait_although_decode_has_room(policy):
    decodes = [worker("decode", "d")]
    assert put(policy, 200, decodes, [worker("prefill", "p", tokens=1000, free=(4, 100, 199))]) == Wait("prefill")
    assert put(policy, 200, decodes, [worker("prefill", "p", pages=100, free=(4, 12, 1000))]) == Wait("prefill")


def test_an_idle_group_takes_a_prompt_longer_than_its_queue(policy):
    decodes = [worker("decode", "d")]
    found = put(policy, 1500, decodes, [worker("prefill", "p", tokens=1000)])
    assert where(found) == ("long_prompt", "d", "p")
    assert put(policy, 1500, decodes, [worker("prefill", "p", tokens=1000, free=(4, 100, 999))]) == Wait("prefill")


def test_a_worker_that_failed_the_request_is_avoided_even_if_the_others_are_busy(policy):
    decodes = [worker("decode", "bad"), worker("decode", "good", free=(0, 100, 0))]
    assert put(policy, 50, decodes, [], avoid={PeerId("bad", 1)}) == Wait("decode")
    decodes = [worker("decode", "bad"), worker("decode", "good", free=(0, 100, 0))]
    found = put(policy, 50, decodes, [], avoid={PeerId("good", 1)})
    assert where(found)[1] == "bad"
    assert isinstance(found, Placement)
    [excluded] = [c for c in found.decision.candidates if c.excluded]
    assert (excluded.decode.name, excluded.excluded, excluded.fits) == ("good", FAILED_BEFORE, False)


def test_the_only_decode_worker_is_taken_again(policy):
    assert where(put(policy, 50, [worker("decode", "bad")], [], avoid={PeerId("bad", 1)}))[1] == "bad"


def test_when_it_failed_on_every_prefill_group_it_is_local(policy):
    found = put(policy, 500, [worker("decode", "d")], [worker("prefill", "p")], avoid={PeerId("p", 1)})
    assert where(found) == ("prefill_failed", "d", None)


def test_a_sequence_without_room_for_one_more_token_is_refused_by_all_sizes(policy):
    by_pages = worker("decode", "d", pages=4)  # 64 tokens
    by_length = worker("decode", "e", max_model_len=50)
    assert refusal(63, [by_pages, by_length]) is None
    assert refusal(64, [by_pages, by_length]) == (
        "a sequence of 64 tokens leaves no room for output: at most 64 tokens fit"
    )
    assert put(policy, 64, [by_pages, by_length], []) == Wait("worker")


def test_nobody_to_ask_is_no_refusal():
    assert refusal(10**9, []) is None


def test_a_decision_is_filled_by_every_policy(policy):
    decodes = [worker("decode", "d"), worker("decode", "full", free=(0, 0, 0))]
    found = put(policy, 200, decodes, [worker("prefill", "p")])
    assert isinstance(found, Placement)
    decision = found.decision
    assert {(c.decode.name, c.prefill and c.prefill.name, c.fits) for c in decision.candidates} == {
        ("d", "p", True),
        ("full", "p", False),
    }
    assert decision.why.startswith("remote on p -> d: long_prompt; 200 of 200 tokens")
    assert "\n" not in decision.why
    assert decision.policy == policy
    for candidate in decision.candidates:
        assert candidate.cost == pytest.approx(sum(term.value for term in candidate.terms))
        assert len({term.name for term in candidate.terms}) == len(candidate.terms) > 0
    [chosen] = [c for c in decision.candidates if decision.chose(c)]
    costs = [c.cost for c in decision.candidates]
    assert costs == sorted(costs)
    assert decision.margin == pytest.approx(min(c for c in costs if c is not chosen.cost) - chosen.cost)
    assert decision.predicted_ttft_s > 0
    assert decision.predicted_itl_s > 0
    assert decision.predicted_output_tokens > 0


def test_no_more_than_64_candidates_are_kept_of_a_thousand_workers(policy):
    decodes = [worker("decode", f"d{n}") for n in range(600)]
    prefills = [worker("prefill", f"p{n}") for n in range(400)]
    found = put(policy, 200, decodes, prefills)
    assert isinstance(found, Placement)
    assert 2 <= len(found.decision.candidates) <= 64


def test_of_a_thousand_workers_the_one_with_room_is_found(policy):
    decodes = [worker("decode", f"d{n}", free=(0, 100, 0)) for n in range(500)]
    decodes[333] = worker("decode", "free")
    prefills = [worker("prefill", f"p{n}", tokens=1000, free=(4, 100, 10)) for n in range(500)]
    prefills[222] = worker("prefill", "idle", tokens=1000)
    found = put(policy, 200, decodes, prefills)
    assert where(found) == ("long_prompt", "free", "idle")
    assert any(found.decision.chose(candidate) for candidate in found.decision.candidates)


def test_in_turn_means_among_those_that_are_there_and_who_comes_back_is_next():
    first, second = worker("decode", "first"), worker("decode", "second")
    tried = placer([first, second], [], policy="round_robin")

    def four() -> list[str]:
        return [where(tried.place(request(50, request_id=f"r{number}"), 0.0))[1] for number in range(4)]

    assert four() == ["first", "second", "first", "second"]
    registry = tried._registry
    registry.remove(second)  # killed
    assert four() == ["first"] * 4
    again = worker("decode", "second", epoch=2)
    again.ledger.report(Credits(0, 0, 0, 0))  # it is there, but has not reported yet what is free
    registry.add(again)
    assert four() == ["first"] * 4
    again.ledger.report(Credits(0, 64, 4096, 0))
    assert four() == ["second", "first", "second", "first"]
