"""The default policy: when a prompt leaves its decode worker, and what makes a way dearer."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slipstream.router.config.router_config import SloConfig
from slipstream.router.placement.policies.estimate import estimate_prefill
from slipstream.router.placement.policies.shortlist import Shortlist
from slipstream.router.placement.policies.slo import SloPolicy, miss
from slipstream.router.registry.worker_load import PendingPrefill
from slipstream.router.requests.placement_decision import Placement, Wait
from tests.support.router.placed_workers import (
    NoPrefixes,
    job,
    measured,
    placer,
    queue_prompt,
    request,
    run_streams,
    where,
    worker,
)

POLICY = SloPolicy(SloConfig())


def decode(name="d", streams=0, **fields):
    made = measured(worker("decode", name, **fields))
    run_streams(made, streams)
    return made


def group(name="p", *queued, **fields):
    made = measured(worker("prefill", name, **fields))
    for num_tokens in queued:
        queue_prompt(made, num_tokens)
    return made


def put(num_tokens, decodes, prefills, cached=None, **fields):
    options = Shortlist(decodes, prefills, None if prefills else "no_prefill_group", cached or {})
    return POLICY.place(job(num_tokens, **fields), options, 0.0)


def cost_of(found, decode_name, prefill_name=None):
    """Of one way, among all that were looked at."""
    assert isinstance(found, Placement)
    [candidate] = [
        c
        for c in found.decision.candidates
        if c.decode.name == decode_name and (c.prefill and c.prefill.name) == prefill_name
    ]
    return candidate.cost


def test_a_long_prompt_stays_on_an_idle_decode_worker():
    assert where(put(2000, [decode()], [group()])) == ("cheaper_local", "d", None)


def test_a_long_prompt_leaves_a_decode_worker_with_streams():
    assert where(put(2000, [decode(streams=16)], [group()])) == ("cheaper_remote", "d", "p")


def test_a_long_prompt_stays_when_the_prefill_groups_are_swamped():
    assert where(put(1000, [decode(streams=2)], [group("p", 8000)])) == ("cheaper_local", "d", None)


def test_what_is_cached_on_the_decode_worker_is_not_sent_away():
    there, sent = decode(streams=16), group()
    assert where(put(2000, [there], [sent]))[0] == "cheaper_remote"
    assert where(put(2000, [there], [sent], {there: 1984})) == ("cheaper_local", "d", None)


def test_a_group_with_the_prefix_wins_over_an_idle_one_until_its_queue_is_longer():
    known, other = group("known"), group("other")
    cached = {known: 3000}
    assert where(put(4000, [decode(streams=16)], [known, other], cached))[2] == "known"
    for _ in range(3):
        queue_prompt(known, 3000)
    assert where(put(4000, [decode(streams=16)], [known, other], cached))[2] == "other"


def test_the_decode_worker_with_fewer_streams_is_taken():
    assert where(put(100, [decode("a", 20), decode("b", 5)], []))[1] == "b"


def test_a_slow_decode_worker_gets_less():
    fast = measured(worker("decode", "fast"), step_s=0.01)
    slow = measured(worker("decode", "slow"), step_s=0.04)
    run_streams(fast, 8)
    assert where(put(100, [slow, fast], []))[1] == "fast"


@pytest.mark.parametrize("reality", [1.0, 2.0])
def test_a_burst_of_short_prompts_does_not_bring_a_long_one_to_the_streams(reality):
    """Three streams on slow workers have just begun, two of their prompts on the group; a prompt of eleven seconds
    follows. Prompts like those two would rather stay with the streams than wait behind it."""
    slow = {"step_s": 0.03, "chunk_s": 0.03, "token_s": 2.7e-3}
    there, sent = measured(worker("decode", "d"), **slow), measured(worker("prefill", "p"), **slow)
    run_streams(there, 3, context=32, remaining=250.0)
    for _ in range(2):
        prompt = PendingPrefill(32, 512.0, 0.12, 0.2, 0.0)
        sent.load.begin_prefill(prompt)
        sent.load.end_prefill(prompt)
    sent.times.correction = reality
    assert where(put(4000, [there], [sent], output=2)) == ("cheaper_remote", "d", "p")


def test_a_conversation_goes_where_it_was_but_not_into_a_crowd():
    first, second = decode("a"), decode("b")
    views = NoPrefixes(known={"chat/decode": second})
    asked = placer([first, second], [], views=views)
    assert where(asked.place(request(50, session="chat"), 0.0))[1] == "b"
    assert where(asked.place(request(50), 0.0))[1] == "a"
    run_streams(second, 10)
    assert where(asked.place(request(50, session="chat"), 0.0))[1] == "a"


def test_a_better_worker_is_waited_for_no_longer_than_it_would_save():
    free, full = decode("free", streams=10, slots=40), decode("full", slots=1)
    slow = measured(worker("decode", "slow"), step_s=0.2, by_seq_s=0.01)
    run_streams(full, 1, remaining=2.0)
    found = put(50, [slow, full], [])
    assert isinstance(found, Wait)
    assert found.lacks == "decode"
    assert found.saving_s > 0
    assert where(put(50, [slow, full], [], may_wait=False))[1] == "slow"
    assert where(put(50, [free, full], [], may_wait=False))[1] == "free"


def test_a_request_that_is_late_already_still_goes_somewhere():
    assert where(put(2000, [decode(streams=4)], [group("p", 8000)], waited_s=100.0))[1] == "d"


def test_the_more_wait_for_a_worker_the_less_it_is_worth_waiting():
    full, slow = decode("full", slots=1), measured(worker("decode", "slow"), step_s=0.05)
    run_streams(full, 1, remaining=30.0)
    first = put(50, [slow, full], [])
    assert isinstance(first, Wait)
    assert where(put(50, [slow, full], [], num_waiting_before=20))[1] == "slow"


def test_without_any_sample_all_goes_by_the_priors():
    found = put(500, [worker("decode", "d")], [worker("prefill", "p")])
    assert isinstance(found, Placement)
    assert found.decision.predicted_ttft_s > 0


def test_a_worker_without_samples_is_taken_for_like_its_pool():
    known, fresh = decode("known", streams=10), worker("decode", "fresh")
    asked = placer([known, fresh], [])
    for state in (known, fresh):
        assert state.times is not None
    assert where(asked.place(request(50), 0.0))[1] == "fresh"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e9])
def test_times_that_cannot_be_are_dropped(seconds):
    from slipstream.router.protocol.messages import StepTime

    honest = decode()
    before = honest.times.to_dict()
    honest.times.observe_step(StepTime(0, 0, 4, 400, seconds))
    honest.times.observe_step(StepTime(64, 32, 0, 0, seconds))
    assert honest.times.to_dict() == before


def test_a_worker_that_claims_to_need_no_time_is_found_out_by_its_first_tokens():
    honest = measured(worker("prefill", "honest"))
    liar = measured(worker("prefill", "liar"), token_s=1e-9, chunk_s=1e-9)
    options = [decode(streams=20)], [liar, honest]
    assert where(put(4000, *options))[2] == "liar"
    for _ in range(60):  # really it needs ten times as long as the other
        liar.times.observe_first_token(0.0001, 4.0)
    assert where(put(4000, *options))[2] == "honest"


tokens = st.integers(1, 8000)


@settings(max_examples=60, deadline=None)
@given(tokens, tokens, st.integers(0, 30))
def test_a_longer_queue_never_makes_a_group_cheaper(num_tokens, more, streams):
    streams_there = decode(streams=streams)
    idle, busy = group("p", more), group("q", more)
    queue_prompt(busy, 1)
    before = cost_of(put(num_tokens, [streams_there], [idle], may_wait=False), "d", "p")
    after = cost_of(put(num_tokens, [streams_there], [busy], may_wait=False), "d", "q")
    assert after >= before


@settings(max_examples=60, deadline=None)
@given(tokens, st.integers(0, 8000), st.integers(0, 8000), st.integers(0, 30))
def test_a_larger_cached_prefix_is_never_dearer_in_as_many_steps(num_tokens, one, other, streams):
    """A prompt of one token more than a step holds counts as two equal steps, which harm streams less than the one of
    a token less: that much the estimate is off."""
    less, more = sorted((min(one, num_tokens - 1), min(other, num_tokens - 1)))
    there, sent = decode(streams=streams), group()
    for step_tokens in (there.hello.max_step_tokens - streams, sent.hello.max_step_tokens):
        assume(-(-(num_tokens - less) // step_tokens) == -(-(num_tokens - more) // step_tokens))
    for with_cache, way in ((there, ("d", None)), (sent, ("d", "p"))):
        dear = cost_of(put(num_tokens, [there], [sent], {with_cache: less}), *way)
        cheap = cost_of(put(num_tokens, [there], [sent], {with_cache: more}), *way)
        assert cheap <= dear + 1e-9


@settings(max_examples=60, deadline=None)
@given(tokens, st.integers(0, 40), st.integers(1, 20))
def test_more_streams_never_make_local_prefill_cheaper(num_tokens, streams, more):
    few, many = decode(streams=streams, slots=128), decode(streams=streams + more, slots=128)
    assert cost_of(put(num_tokens, [many], []), "d") >= cost_of(put(num_tokens, [few], []), "d") - 1e-9


@given(st.floats(0.001, 10), st.floats(0.001, 10), st.floats(0.0, 2.0))
def test_the_danger_of_a_miss_is_a_probability_that_grows_with_the_value(value, level, noise):
    danger = miss(value, level, noise)
    assert 0 <= danger <= 1
    assert miss(value * 1.1, level, noise) >= danger - 1e-9 or value > level


def test_each_term_of_a_candidate_has_its_say():
    found = put(3000, [decode(streams=20)], [group("p", 4000)])
    assert isinstance(found, Placement)
    by_way = {c.prefill is None: {t.name: t.value for t in c.terms} for c in found.decision.candidates}
    local, remote = by_way[True], by_way[False]
    assert local["stall"] > 1.0
    assert local["hiccup"] > 0
    assert remote["stall"] == remote["hiccup"] == 0
    assert remote["queue"] > 0.3
    assert remote["reserve"] > 0
    assert remote["handoff"] > 0
    assert local["slowdown"] == remote["slowdown"] > 0


def leave_while_prefilled(asked, state, group, now):
    placed = asked.begin(state, asked.place(state, 0.0), 0.0)
    state.decode, state.prefill = asked.place(state, 0.0).decode, group
    state.enter("prefill", 0.0)
    placed.leave(now)


def test_a_group_still_ends_the_chunk_of_a_prompt_that_nobody_wants():
    there, sent = decode(streams=4), group()
    asked = placer([there], [sent])
    leave_while_prefilled(asked, request(4096), sent, 1.0)
    chunk_s = 0.5 * estimate_prefill(sent, job(4096), 0, 9.0).raw_s
    waiting = [estimate_prefill(sent, job(32), 0, now).queue_s for now in (1.0, 1.0 + 0.25 * chunk_s, 1.0 + chunk_s)]
    assert waiting == [pytest.approx(0.5 * chunk_s), pytest.approx(0.25 * chunk_s), 0.0]


def test_the_chunk_takes_as_long_as_the_worker_really_needs():
    there, sent = decode(streams=4), group()
    asked = placer([there], [sent])
    there.times.correction = sent.times.correction = 2.0
    leave_while_prefilled(asked, request(4096), sent, 1.0)
    first, second = (estimate_prefill(sent, job(32), 0, now).queue_s for now in (1.0, 1.1))
    assert first == pytest.approx(0.5 * 0.5 * estimate_prefill(sent, job(4096), 0, 9.0).own_s)
    assert second == pytest.approx(first - 0.1)


def test_the_queue_knows_about_the_chunks_of_the_others():
    there, sent = decode(streams=4), group()
    asked = placer([there], [sent])
    queue_prompt(sent, 100)
    before = estimate_prefill(sent, job(32), 0, 1.0).queue_s
    leave_while_prefilled(asked, request(4096), sent, 1.0)
    assert estimate_prefill(sent, job(32), 0, 1.0).queue_s == before


def test_a_short_prompt_that_is_not_wanted_either_does_not_end_the_chunk_before_it():
    sent = group()
    for num_tokens, work_s in ((4096, 4.0), (32, 0.1)):
        prompt = PendingPrefill(num_tokens, 0.0, work_s, work_s, 1.0)
        sent.load.begin_prefill(prompt)
        sent.load.end_prefill(prompt)
        sent.load.abandon_chunk(prompt, 512, 1.0, 1.0)
    assert sent.load.abandoned_s(1.0) == pytest.approx(0.5 * 512 / 4096 * 4.0)


def test_a_limit_for_local_prefill_is_told_as_it_hides_the_other_ways():
    found = put(2000, [decode(streams=4)], [group("p", 0)], local_max_tokens=64)
    assert found.decision.why.endswith("; prompts of up to 64 tokens stay local (local_prefill_max_tokens)")
    found = put(2000, [decode(streams=4)], [group("p", 0)], local_max_tokens=0)
    assert found.decision.why.endswith("; no prompt stays local (local_prefill_max_tokens)")
    found = put(2000, [decode(streams=4)], [], local_max_tokens=64)
    assert "no_prefill_group" in found.decision.why
    assert "stay local" not in found.decision.why
    assert "stay local" not in put(2000, [decode(streams=4)], [group("p", 0)]).decision.why


def test_who_has_a_first_token_is_not_late_for_it_when_it_goes_on_elsewhere():
    def risk(num_output):
        going_on = request(200)
        going_on.output.ids.extend(range(num_output))
        found = placer([decode()], []).place(going_on, 100.0)
        return next(t.value for t in found.decision.candidates[0].terms if t.name == "ttft_risk")

    assert risk(0) > 1.0
    assert risk(1) < 0.1
