"""What the engine does with single requests, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import StepPlan
from slipstream.workers.engine.scheduling.sequence import SequenceState
from slipstream.workers.interface.engine import Capacity, EngineRequestError
from tests.support.workers.engine_driver import make_limits, make_request, make_ticket, owned, run, tokens_of
from tests.support.workers.fake_executor import FakeExecutor, continuation, next_token, slices_of

VOCAB = 100


def make_engine(**overrides: Any) -> tuple[NativeEngine, FakeExecutor]:
    limits = make_limits(**overrides)
    executor = FakeExecutor(limits.num_pages, limits.page_tokens, limits.vocab_size)
    return NativeEngine(limits, executor), executor


def tokens_by_slice(plan: StepPlan) -> list[int]:
    return np.diff(plan.arrays.query_starts).tolist()


def test_decoding_goes_before_prefill_chunks_and_chunks_end_with_a_page() -> None:
    engine, executor = make_engine(max_step_tokens=8)
    engine.add(make_request("a", range(3)))
    engine.step()
    engine.add(make_request("b", range(50, 70)))
    engine.step()
    engine.step()
    # 8 tokens: one decodes, 7 are left, of which a chunk that ends with a page of 4 takes 4.
    assert [tokens_by_slice(plan) for plan in executor.plans] == [[3], [1, 4], [1, 4]]
    assert [s.start for s in slices_of(executor.plans[2].arrays, 4)] == [3 + 1, 4]


def test_step_smaller_than_a_page_still_gets_on() -> None:
    engine, executor = make_engine(max_step_tokens=3)
    assert tokens_of(engine, make_request("a", range(7), max_tokens=2)) == [continuation(range(7), 2, VOCAB)]
    assert [tokens_by_slice(plan) for plan in executor.plans] == [[3], [3], [1], [1]]


def test_lower_priority_value_runs_first_then_first_come() -> None:
    engine, _ = make_engine(max_num_seqs=1)
    for name, priority in (("late", 1), ("first", 0), ("second", 0)):
        engine.add(make_request(name, [1, 2], max_tokens=2, priority=priority))
    assert [name for name, _ in run(engine)] == ["first", "second", "late"]


def test_output_of_earlier_attempts_goes_on_where_it_ended() -> None:
    engine, _ = make_engine()
    whole = continuation(range(5), 8, VOCAB)
    engine.add(make_request("a", range(5), whole[:3]))
    result = run(engine)["a", 0]
    assert (result.first_index, result.token_ids, result.finish_reason) == (3, whole[3:], "length")


def first_different(tokens: list[int]) -> int:
    return next(i for i, token in enumerate(tokens) if token not in tokens[:i] and i >= 2)


@pytest.mark.parametrize("kind", ["eos", "stop_token_id"])
def test_stop_token_ends_the_output_and_is_named(kind: str) -> None:
    whole = continuation(range(5), 8, VOCAB)
    at = first_different(whole)
    engine, _ = make_engine(eos_token_ids=(whole[at],) if kind == "eos" else ())
    engine.add(make_request("a", range(5), stop_token_ids=() if kind == "eos" else (whole[at],)))
    result = run(engine)["a", 0]
    assert result.token_ids == whole[: at + 1]
    assert (result.finish_reason, result.stop_token_id) == ("stop", whole[at])


def test_ignore_eos_goes_on_to_max_tokens() -> None:
    whole = continuation(range(5), 8, VOCAB)
    engine, _ = make_engine(eos_token_ids=tuple(whole))
    engine.add(make_request("a", range(5), ignore_eos=True))
    result = run(engine)["a", 0]
    assert (result.token_ids, result.finish_reason, result.stop_token_id) == (whole, "length", None)


def test_model_length_ends_the_output() -> None:
    engine, _ = make_engine(max_model_len=10)
    engine.add(make_request("a", range(7)))
    result = run(engine)["a", 0]
    assert (len(result.token_ids), result.finish_reason) == (3, "length")


def test_min_tokens_masks_what_would_end_the_output() -> None:
    engine, executor = make_engine(eos_token_ids=(3, VOCAB))
    seen: list[tuple[int, ...]] = []

    class Spy(FakeExecutor):
        def execute(self, plan: StepPlan, sampling: Any) -> Any:
            seen.extend(row.masked_ids for row in sampling)
            return executor.execute(plan, sampling)

    engine = NativeEngine(engine.limits, Spy(16, 4, VOCAB))
    engine.add(make_request("a", range(5), max_tokens=4, min_tokens=2, stop_token_ids=(4, 1000)))
    run(engine)
    assert [sorted(masked) for masked in seen] == [[3, 4], [3, 4]]  # then greedy, without rows


def test_stop_token_before_min_tokens_does_not_end_the_output() -> None:
    """Masking keeps it from being sampled; an executor that lets it through all the same breaks no promise."""
    whole = continuation(range(5), 8, VOCAB)
    engine, _ = make_engine(eos_token_ids=(whole[1],))
    assert tokens_of(engine, make_request("a", range(5), max_tokens=4, min_tokens=4)) == [whole[:4]]


def test_min_tokens_counts_what_earlier_attempts_have_generated() -> None:
    whole = continuation(range(5), 8, VOCAB)
    engine, _ = make_engine(eos_token_ids=(whole[2], whole[5]))
    request = make_request("a", range(5), whole[:2], attempt=1, max_tokens=8, min_tokens=4)
    assert tokens_of(engine, request) == [whole[2:6]]


def test_finished_sequence_leaves_its_full_pages_to_the_next() -> None:
    engine, executor = make_engine()
    engine.add(make_request("a", range(10), max_tokens=4))
    run(engine)
    assert engine.page_counts()["cached"] == 3  # 10 + 3 tokens have KV
    engine.add(make_request("b", range(10), max_tokens=4))
    assert run(engine)["b", 0].num_cached_tokens == 8
    assert slices_of(executor.plans[-4].arrays, 4)[0].start == 8


def test_last_token_of_a_known_prompt_is_computed_all_the_same() -> None:
    engine, _ = make_engine()
    expected = continuation(range(8), 1, VOCAB)
    assert tokens_of(engine, make_request("a", range(8), max_tokens=1)) == [expected]
    engine.add(make_request("b", range(8), max_tokens=1))
    result = run(engine)["b", 0]
    assert (result.num_cached_tokens, result.token_ids) == (4, expected)


def test_salt_separates_tenants() -> None:
    engine, _ = make_engine()
    engine.add(make_request("a", range(10), cache_salt="x"))
    run(engine)
    engine.add(make_request("b", range(10), cache_salt="y"))
    engine.add(make_request("c", range(10), cache_salt="x"))
    results = run(engine)
    assert (results["b", 0].num_cached_tokens, results["c", 0].num_cached_tokens) == (0, 8)


def test_without_prefix_caching_nothing_is_kept() -> None:
    engine, _ = make_engine(prefix_caching=False)
    for name in ("a", "b"):
        engine.add(make_request(name, range(10)))
        assert run(engine)[name, 0].num_cached_tokens == 0
    assert engine.page_counts()["free"] == 16


def test_prefill_aborted_half_way_leaves_only_computed_pages_behind() -> None:
    engine, _ = make_engine(max_step_tokens=8)
    engine.add(make_request("a", range(20)))
    engine.step()
    assert not engine.abort(("a", 0))
    assert engine.page_counts() == {"active": 0, "reserved": 0, "held": 0, "draining": 0, "cached": 2, "free": 14}
    assert tokens_of(engine, make_request("b", range(20))) == [continuation(range(20), 8, VOCAB)]


def test_preempted_sequence_produces_the_same_tokens() -> None:
    engine, _ = make_engine(num_pages=8, max_model_len=32)
    prompts = [range(i, i + 9) for i in (0, 20, 40)]
    requests = [make_request(f"r{i}", prompt, max_tokens=12) for i, prompt in enumerate(prompts)]
    assert tokens_of(engine, *requests) == [continuation(prompt, 12, VOCAB) for prompt in prompts]
    assert engine.stats().total_preemptions > 0


def test_admission_leaves_running_sequences_a_page_to_grow() -> None:
    engine, _ = make_engine(num_pages=4, max_model_len=16)
    engine.add(make_request("a", range(7)))
    engine.step()
    engine.add(make_request("b", range(20, 27)))
    run(engine)
    assert engine.stats().total_preemptions == 0
    assert engine.stats().total_sampled_tokens == 16


def test_last_in_order_is_preempted_first() -> None:
    engine, _ = make_engine(num_pages=7, max_model_len=28, max_step_tokens=64)
    engine.add(make_request("old", range(7), max_tokens=12))
    engine.add(make_request("young", range(20, 27), max_tokens=12))
    engine.add(make_request("urgent", range(40, 47), max_tokens=12, priority=-1))
    while engine.stats().total_preemptions == 0:
        engine.step()
    states = [engine.state((name, 0)) for name in ("urgent", "old", "young")]
    assert states == [SequenceState.RUNNING, SequenceState.RUNNING, SequenceState.WAITING]
    assert {len(result.token_ids) for result in run(engine).values()} <= set(range(1, 13))


def test_sequence_whose_pages_are_being_sent_is_not_preempted() -> None:
    engine, executor = make_engine(num_pages=8, max_model_len=28, max_step_tokens=4, max_num_seqs=2)
    engine.add(make_request("a", range(7), max_tokens=12))
    engine.step()
    engine.add_prefill(make_request("b", range(30, 50)), make_ticket(1, 0, 5))
    results = run(engine)
    assert results["b", 0].token_ids == continuation(range(30, 50), 1, VOCAB)
    assert sum(len(plan.sends) for plan in executor.plans) == 1
    assert engine.state(("a", 0)) is SequenceState.WAITING
    assert not engine.has_work
    engine.release(("b", 0))
    run(engine)
    assert engine.keys() == []


def test_prefill_sends_pages_as_they_become_complete_and_holds_them() -> None:
    engine, executor = make_engine(max_step_tokens=8)
    engine.add_prefill(make_request("a", range(18)), make_ticket(7, 1, 4))
    outputs = run(engine)["a", 0]
    assert outputs.token_ids == continuation(range(18), 1, VOCAB)
    assert outputs.finish_reason is None
    [send] = executor.plans[0].sends
    page_ids = np.frombuffer(slices_of(executor.plans[-1].arrays, 4)[0].page_ids, np.int32)
    assert np.frombuffer(send.page_ids, np.int32).tolist() == page_ids[1:].tolist()
    assert [[p.num_pages for p in plan.progress] for plan in executor.plans] == [[2], [4], [5]]
    assert [plan.sends for plan in executor.plans[1:]] == [(), ()]
    assert engine.page_counts()["held"] == 5
    assert engine.capacity().free_slots == 4
    assert engine.release(("a", 0))
    assert engine.page_counts() == {"active": 0, "reserved": 0, "held": 0, "draining": 0, "cached": 4, "free": 12}


def test_cached_prefix_counts_as_sent_progress_from_the_first_step() -> None:
    engine, executor = make_engine(max_step_tokens=4)
    tokens_of(engine, make_request("warm", range(9), max_tokens=1))
    engine.add_prefill(make_request("a", range(18)), make_ticket(7, 0, 5))
    run(engine)
    progress = [p.num_pages for plan in executor.plans for p in plan.progress]
    assert progress == [3, 4, 5]


def test_prefill_whose_only_token_ends_it_says_so_and_is_still_held() -> None:
    engine, _ = make_engine()
    engine.add_prefill(make_request("a", range(6), max_tokens=1), make_ticket(1, 0, 2))
    assert run(engine)["a", 0].finish_reason == "length"
    assert engine.state(("a", 0)) is SequenceState.HELD


def test_sequence_without_a_token_ends_with_error_and_leaves_nothing_in_the_prefix_cache() -> None:
    engine, executor = make_engine()
    executor.broken_after = 99
    engine.add(make_request("sound", range(8)))
    engine.add(make_request("broken", [*range(8), *range(50, 54), 99]))
    generated = run(engine)
    assert generated["sound", 0].token_ids == continuation(list(range(8)), 8, 100)
    assert (generated["broken", 0].token_ids, generated["broken", 0].finish_reason) == ([], "error")
    assert engine.state(("broken", 0)) is None
    executor.broken_after = None
    engine.add(make_request("again", [*range(8), *range(50, 54), 99], max_tokens=1))
    assert run(engine)["again", 0].num_cached_tokens == 0


def test_prefill_without_a_token_ends_with_error_and_is_still_held() -> None:
    engine, executor = make_engine()
    executor.broken_after = 6
    engine.add_prefill(make_request("a", range(7)), make_ticket(1, 0, 2))
    assert run(engine)["a", 0].finish_reason == "error"
    assert engine.state(("a", 0)) is SequenceState.HELD
    engine.release(("a", 0))
    assert engine.page_counts()["free"] == 16


def test_prefill_aborted_while_it_sends_drains_until_released() -> None:
    engine, _ = make_engine(max_step_tokens=4)
    engine.add_prefill(make_request("a", range(18)), make_ticket(1, 0, 5))
    engine.step()
    assert engine.abort(("a", 0), keep_pages=True)
    assert (engine.page_counts()["draining"], engine.has_work) == (5, False)
    assert engine.abort(("a", 0), keep_pages=True)
    assert engine.release(("a", 0))
    assert owned(engine) == 0
    assert not engine.release(("a", 0))


@pytest.mark.parametrize(("first_page", "num_pages"), [(0, 4), (1, 5), (5, 0), (-1, 6)])
def test_ticket_that_does_not_fit_the_prompt_is_refused(first_page: int, num_pages: int) -> None:
    engine, _ = make_engine()
    with pytest.raises(EngineRequestError, match="ticket") as error:
        engine.add_prefill(make_request("a", range(18)), make_ticket(1, first_page, num_pages))
    assert error.value.field == "ticket"


@pytest.mark.parametrize("start_first", [False, True])
def test_reserved_sequence_runs_once_landed_and_started(start_first: bool) -> None:
    engine, executor = make_engine()
    prompt = list(range(10))
    whole = continuation(prompt, 8, VOCAB)
    reservation = engine.reserve(make_request("a", prompt))
    assert reservation is not None
    assert (reservation.first_page, len(reservation.page_ids), reservation.num_cached_tokens) == (0, 3, 0)
    assert engine.page_counts()["reserved"] == 3  # with room for the next token
    executor.fill(reservation.page_ids, 0, prompt)
    for starts in (start_first, not start_first):
        assert not engine.has_work
        assert engine.start(("a", 0), tuple(whole[:1])) if starts else engine.land(("a", 0))
    result = run(engine)["a", 0]
    assert (result.first_index, result.token_ids) == (1, whole[1:])
    assert executor.plans[0].arrays.num_tokens == 1
    assert owned(engine) == 0


def test_reservation_asks_only_for_what_is_not_cached_and_never_for_nothing() -> None:
    engine, _ = make_engine()
    tokens_of(engine, make_request("warm", range(8), max_tokens=1))
    reservation = engine.reserve(make_request("a", range(8)))
    assert reservation is not None
    assert (reservation.first_page, len(reservation.page_ids), reservation.num_cached_tokens) == (1, 1, 4)


def test_landed_pages_are_prefix_cache_for_others_at_once() -> None:
    engine, executor = make_engine()
    reservation = engine.reserve(make_request("a", range(10)))
    assert reservation is not None
    before = engine.reserve(make_request("b", range(10)))
    assert before is not None
    assert before.num_cached_tokens == 0
    executor.fill(reservation.page_ids, 0, range(10))
    engine.land(("a", 0))
    after = engine.reserve(make_request("c", range(10)))
    assert after is not None
    assert after.num_cached_tokens == 8


def test_reservation_converted_before_it_landed_is_computed_here() -> None:
    engine, _ = make_engine()
    engine.reserve(make_request("a", range(10)))
    assert tokens_of(engine, make_request("a", range(10))) == [continuation(range(10), 8, VOCAB)]
    assert owned(engine) == 0


def test_reservation_converted_after_it_landed_uses_its_pages_as_prefix() -> None:
    engine, executor = make_engine()
    reservation = engine.reserve(make_request("a", range(10)))
    assert reservation is not None
    executor.fill(reservation.page_ids, 0, range(10))
    engine.land(("a", 0))
    assert tokens_of(engine, make_request("a", range(10))) == [continuation(range(10), 8, VOCAB)]
    assert slices_of(executor.plans[0].arrays, 4)[0].start == 8


def test_no_reservation_without_a_slot_or_pages() -> None:
    engine, _ = make_engine(max_num_seqs=2)
    assert engine.reserve(make_request("a", range(24))) is not None
    assert engine.reserve(make_request("b", range(36))) is None
    assert engine.reserve(make_request("c", range(20, 28))) is not None
    assert engine.reserve(make_request("d", [1])) is None
    engine.check_integrity()


def test_reservation_keeps_a_slot() -> None:
    engine, _ = make_engine(max_num_seqs=2)
    engine.reserve(make_request("reserved", range(10)))
    for name in ("a", "b"):
        engine.add(make_request(name, [1, 2, 3], max_tokens=2))
    engine.step()
    states = [engine.state((name, 0)) for name in ("a", "b")]
    assert states == [SequenceState.RUNNING, SequenceState.WAITING]
    assert len(run(engine)["b", 0].token_ids) == 2


def test_reservations_leave_queued_sequences_their_pages() -> None:
    engine, _ = make_engine(num_pages=10, max_model_len=40)
    engine.add(make_request("running", range(20)))
    engine.step()
    engine.add(make_request("queued", range(40, 56)))  # needs 4 of the 5 pages that are left
    assert engine.capacity().free_pages == 0  # the last one is for the running sequence to grow
    assert engine.reserve(make_request("a", range(3))) is None


def test_aborted_reservation_drains_while_pages_may_arrive() -> None:
    engine, _ = make_engine()
    assert engine.reserve(make_request("a", range(10))) is not None
    assert engine.abort(("a", 0), keep_pages=True)
    assert engine.page_counts()["draining"] == 3
    assert not engine.land(("a", 0))
    assert not engine.start(("a", 0), (1,))
    engine.release(("a", 0))
    assert engine.page_counts()["free"] == 16


def test_start_that_leaves_nothing_to_generate_is_refused() -> None:
    engine, _ = make_engine()
    engine.reserve(make_request("a", range(10), max_tokens=2))
    for token_ids in ((), (1, 2), (VOCAB,), (-1,)):
        with pytest.raises(EngineRequestError, match="token_ids"):
            engine.start(("a", 0), token_ids)
    assert engine.start(("a", 0), (1,))


@pytest.mark.parametrize(
    ("field", "prompt", "sampling"),
    [
        ("prompt_ids", [], {}),
        ("prompt_ids", [VOCAB], {}),
        ("prompt_ids", [-1], {}),
        ("prompt_ids", range(40), {}),
        ("max_tokens", [1], {"max_tokens": -1}),
        ("logit_bias", [1], {"logit_bias": ((VOCAB, 1.0),)}),
    ],
)
@pytest.mark.parametrize("call", ["add", "reserve", "add_prefill"])
def test_request_that_can_never_run_is_refused(call: str, field: str, prompt: Any, sampling: dict[str, Any]) -> None:
    engine, _ = make_engine()
    request = make_request("a", prompt, **sampling)
    arguments = (request, make_ticket(1, 0, 1)) if call == "add_prefill" else (request,)
    with pytest.raises(EngineRequestError) as error:
        getattr(engine, call)(*arguments)
    assert error.value.field == field
    assert engine.keys() == []


def test_key_in_use_is_refused_and_the_first_goes_on() -> None:
    engine, _ = make_engine()
    engine.add(make_request("a", range(5)))
    for call in (engine.add, engine.reserve, lambda r: engine.add_prefill(r, make_ticket(1, 0, 2))):
        with pytest.raises(EngineRequestError, match="request_id"):
            call(make_request("a", range(5)))
    engine.add(make_request("a", range(5), attempt=1))
    assert {key: result.finish_reason for key, result in run(engine).items()} == {
        ("a", 0): "length",
        ("a", 1): "length",
    }


def test_unknown_keys_are_ignored() -> None:
    engine, _ = make_engine()
    key = ("nobody", 0)
    answers = [engine.abort(key), engine.release(key), engine.land(key), engine.start(key, (1,))]
    assert answers == [False] * 4


def test_running_sequence_cannot_be_released() -> None:
    engine, _ = make_engine()
    engine.add(make_request("a", range(5)))
    with pytest.raises(EngineRequestError, match="waiting"):
        engine.release(("a", 0))


def test_capacity_counts_everything_that_is_promised() -> None:
    engine, _ = make_engine(max_step_tokens=8)
    assert engine.capacity() == Capacity(4, 16, 64)
    engine.add(make_request("a", range(10)))
    assert engine.capacity() == Capacity(3, 13, 54)
    engine.step()
    assert engine.capacity() == Capacity(3, 12, 62)  # it runs: a page is left for it to grow
    engine.reserve(make_request("b", range(50, 60)))
    assert engine.capacity() == Capacity(2, 9, 62)
    run(engine)
    assert engine.capacity() == Capacity(3, 13, 64)


def test_pool_that_cannot_hold_one_sequence_is_refused() -> None:
    with pytest.raises(EngineConfigError, match="max_model_len 65 needs 17 pages"):
        make_limits(max_model_len=65)


def test_reference_of_these_tests_depends_on_all_tokens() -> None:
    assert next_token([1, 2, 3], 2**31) != next_token([9, 2, 3], 2**31)
