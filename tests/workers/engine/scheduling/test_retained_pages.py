"""Pages of a conversation that pauses, in the engine: found again where others have used the whole pool meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.router.protocol.messages import RetentionHint
from slipstream.workers.engine.native_engine import NativeEngine
from tests.support.workers.engine_driver import make_limits, make_request, owned, run
from tests.support.workers.fake_executor import FakeExecutor

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"num_pages": 40},
    "windows": {"num_pages": 60, "windows": (None, 6)},
    "hybrid": {"num_pages": 60, "state_pages": 2},
    "state only": {"num_pages": 12, "page_tokens": 512, "state_block_tokens": 4},
}
AGENT = list(range(10, 51))
HINT = RetentionHint(30.0, 1.0)


@pytest.fixture(params=LAYOUTS)
def engine(request: pytest.FixtureRequest) -> NativeEngine:
    values = {"max_model_len": 80, "max_queued_tokens": 4000, **LAYOUTS[request.param]}
    limits = make_limits(**values)
    is_state_only = limits.state_block_tokens is not None
    executor = FakeExecutor(
        limits.num_pages, limits.page_tokens, 100, limits.windows, limits.checkpoint_pages, is_state_only=is_state_only
    )
    return NativeEngine(limits, executor)


def serve(engine: NativeEngine, name: str, prompt: list[int], hint: RetentionHint | None = None) -> int:
    """Returns how many tokens of the prompt were cached."""
    engine.add(make_request(name, prompt, max_tokens=3, ignore_eos=True)._replace(retention=hint))
    cached = run(engine)[name, 0].num_cached_tokens
    assert owned(engine) == 0
    engine.prefix_cache.order.check_integrity()
    return cached


def flood(engine: NativeEngine, num: int = 14) -> None:
    for number in range(num):
        serve(engine, f"other {number}", [number + 1] * 41)


def test_a_conversation_finds_its_pages_again_if_they_are_held(engine: NativeEngine) -> None:
    for hint, is_there in ((None, False), (HINT, True)):
        serve(engine, f"turn {hint}", AGENT, hint)
        flood(engine)
        assert (serve(engine, f"next {hint}", [*AGENT, 9, 9, 9, 9]) >= 36) is is_there


def test_they_are_evicted_like_others_when_the_time_is_over(engine: NativeEngine) -> None:
    serve(engine, "turn", AGENT, HINT)
    engine.prefix_cache.order.advance(HINT.keep_s)
    counts = engine.prefix_cache.order.counts
    assert counts.num_held == 0
    assert counts.expired > 0
    flood(engine)
    assert serve(engine, "next", [*AGENT, 9, 9, 9, 9]) == 0


def test_no_request_waits_for_held_pages(engine: NativeEngine) -> None:
    free = engine.capacity().free_pages
    for number in range(12):
        serve(engine, f"r{number}", [number + 1] * 41, RetentionHint(1e6, 1.0, is_pinned=True))
        assert engine.capacity().free_pages == free
    counts = engine.prefix_cache.order.counts
    assert counts.num_held <= 0.9 * engine.limits.num_pages
    assert counts.displaced > 0


def test_the_next_turn_takes_over_the_pages_of_the_one_before(engine: NativeEngine) -> None:
    serve(engine, "one", AGENT, HINT)
    num_held = engine.prefix_cache.order.counts.num_held
    assert serve(engine, "two", AGENT, HINT._replace(continues="one")) >= 36
    assert engine.prefix_cache.order.counts.num_held == num_held
    engine.prefix_cache.order.retain("two", RetentionHint(0.0))
    assert engine.prefix_cache.order.counts.num_held == 0


@pytest.mark.parametrize("num_steps", [0, 1, 3, 6, 9])
def test_a_request_that_is_cut_off_at_any_time_leaves_nothing_behind(engine: NativeEngine, num_steps: int) -> None:
    serve(engine, "one", AGENT[:20], HINT)
    engine.add(make_request("two", AGENT, max_tokens=20, ignore_eos=True)._replace(retention=HINT))
    for _ in range(num_steps):
        engine.step()
    engine.abort(("two", 0))
    engine.check_integrity()
    assert owned(engine) == 0
    engine.prefix_cache.order.advance(100.0)
    assert engine.prefix_cache.order.counts.num_held == 0
    engine.prefix_cache.order.check_integrity()


def test_a_smaller_pool_holds_less(engine: NativeEngine) -> None:
    serve(engine, "one", AGENT, HINT)
    engine.set_page_limit(4)
    while engine.has_work:
        engine.step()
    assert engine.prefix_cache.order.counts.num_held <= 3
    engine.check_integrity()
