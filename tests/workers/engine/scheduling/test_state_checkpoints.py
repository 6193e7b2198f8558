"""Which states are kept for the prefix cache, what later prompts find of them, and which go when pages are short."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import pytest

from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.protocol.block_hash import HashChain, root_digest
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.telemetry.block_events import BlockEvents
from tests.support.router.greetings import make_hello
from tests.support.router.placed_workers import request as waiting_request
from tests.support.workers.engine_driver import make_limits, make_request, make_ticket, owned, run
from tests.support.workers.fake_executor import STATE, FakeExecutor, next_token
from tests.support.workers.kept_states import kept_without_kv

VOCAB_SIZE = 100
BLOCK = 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "hybrid": {"state_pages": 2},
    "hybrid with windows": {"state_pages": 1, "windows": (None, 6)},
    "state only": {"page_tokens": 512, "state_block_tokens": BLOCK},
}


class World:
    """An engine, and what it must generate."""

    def __init__(self, layout: str = "hybrid", **overrides: Any) -> None:
        values = {"num_pages": 300, "max_model_len": 400, "max_queued_tokens": 4000, **LAYOUTS[layout], **overrides}
        self.limits = limits = make_limits(**values)
        self.is_state_only = limits.state_block_tokens is not None
        self.executor = FakeExecutor(
            limits.num_pages,
            limits.page_tokens,
            VOCAB_SIZE,
            limits.windows,
            limits.checkpoint_pages,
            is_state_only=self.is_state_only,
        )
        self.engine = NativeEngine(limits, self.executor)
        self.num_requests = 0

    def follows(self, prompt: list[int], num_tokens: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(
                next_token(tokens, VOCAB_SIZE, self.limits.windows, has_state=True, is_state_only=self.is_state_only)
            )
        return tokens[len(prompt) :]

    def serve(self, prompt: list[int], num_tokens: int = 2) -> int:
        """Computes a request, checks its tokens, and returns how many of the prompt's were cached."""
        self.num_requests += 1
        name = f"r{self.num_requests}"
        self.engine.add(make_request(name, prompt, max_tokens=num_tokens, ignore_eos=True))
        one = run(self.engine)[name, 0]
        assert one.token_ids == self.follows(prompt, num_tokens)
        assert owned(self.engine) == 0
        assert kept_without_kv(self.engine) == []
        return one.num_cached_tokens

    def kept(self, tokens: list[int]) -> list[int]:
        """After how many blocks of these tokens a state is kept."""
        chain = HashChain(root_digest(self.limits.model_id, ""), BLOCK)
        chain.extend(array("i", tokens), len(tokens) // BLOCK)
        known = set(self.engine.prefix_cache.digests())
        return [at + 1 for at, digest in enumerate(chain.digests) if digest in known]


@pytest.fixture(params=LAYOUTS)
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def test_a_prompt_goes_on_from_the_end_of_its_last_full_block(world: World) -> None:
    prompt = list(range(11, 26))  # 15 tokens: 3 blocks and 3 tokens
    assert world.serve(prompt) == 0
    assert world.serve(prompt) == 3 * BLOCK
    assert world.serve([*prompt, 7, 7, 7, 7, 7]) == 3 * BLOCK
    assert world.serve([*prompt[:11], 9]) == 0  # two blocks are shared, behind which there is no state
    assert world.engine.stats().total_prefix_hit_tokens == 6 * BLOCK


def test_the_last_token_is_computed_also_where_the_prompt_ends_with_a_block(world: World) -> None:
    prompt = list(range(11, 23))
    assert world.serve(prompt, 1) == 0
    assert world.serve(prompt, 1) == 2 * BLOCK


def test_the_next_turn_of_a_chat_goes_on_behind_the_answer(world: World) -> None:
    prompt = list(range(11, 21))
    assert world.serve(prompt, 12) == 0
    answered = [*prompt, *world.follows(prompt, 12), 50, 51, 52]
    assert world.serve(answered) == 5 * BLOCK  # of 22 tokens, the last of which was not computed
    assert world.kept(answered[:22]) == [2, 5]  # of the answer only the last


def test_where_two_prompts_part_a_state_is_kept_for_the_third() -> None:
    world = World()
    shared = list(range(11, 24))  # 3 blocks and a token
    assert world.serve([*shared, 1, 1, 1, 1, 1, 1]) == 0
    assert world.serve([*shared, 2, 2, 2, 2, 2, 2]) == 0
    assert world.serve([*shared, 3, 3, 3, 3, 3, 3]) == 3 * BLOCK


def test_long_prompts_keep_a_bounded_number_of_states(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.workers.engine.scheduling.state_checkpoints.MIN_SPARSE_TOKENS", 16)
    prompt = [at * 7 % 90 for at in range(389)]  # 97 blocks
    world.serve(prompt, 1)
    assert world.kept(prompt) == [*range(16, 97, 16), 97]
    assert world.serve([*prompt[:270], 1, 2, 3], 1) == 64 * BLOCK
    short = [at * 5 % 90 for at in range(60)]
    world.serve(short, 1)
    assert world.kept(short) == [4, 8, 12, 14]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_under_pressure_a_state_goes_before_the_kv_that_it_needs(layout: str) -> None:
    world = World(layout, num_pages=24, max_model_len=40)
    hits = 0
    for number in range(40):
        chat = number // 4 % 5 if number % 2 else 5
        of_chat = [chat * 10 + at for at in range(17)]
        hits += world.serve([*of_chat, number % 3, 1, 2, 3, number % 2], 3) > 0
        world.engine.check_integrity()
    assert 0 < hits < 40
    counts = world.engine.page_counts()
    assert counts["free"] + counts["cached"] == 24


def test_a_prompt_that_is_handed_over_is_wanted_without_the_blocks_that_are_cached() -> None:
    """The state comes with the prompt, so the decode worker needs none of its own."""
    decode, prefill = World(), World()
    prompt = list(range(11, 26))
    answer = decode.follows(prompt, 8)
    assert decode.serve(prompt, 8) == 0
    later = [*prompt, *answer[:7], 60, 61, 62]
    assert prefill.serve(prompt) == 0
    reservation = decode.engine.reserve(make_request("late", later, max_tokens=3, ignore_eos=True))
    assert reservation is not None
    assert reservation.first_page == 5
    assert reservation.num_cached_tokens == 5 * BLOCK
    request = make_request("late", later, max_tokens=3, ignore_eos=True)
    ticket = make_ticket(1, reservation.first_page, len(reservation.page_ids))
    prefill.engine.add_prefill(request, ticket)
    [first] = run(prefill.engine)["late", 0].token_ids
    assert [first] == decode.follows(later, 1)
    places = [(5, 0), (6, 0), (STATE, 0), (STATE, 1)]
    decode.executor.fill_list(reservation.page_ids, places, later)
    assert prefill.engine.release(("late", 0))
    assert decode.engine.land(("late", 0))
    assert decode.engine.start(("late", 0), (first,))
    assert [first, *run_tokens(decode)] == decode.follows(later, 3)
    assert owned(decode.engine) == owned(prefill.engine) == 0


def test_a_reservation_counts_as_cached_what_could_be_gone_on_from_here() -> None:
    world = World()
    prompt = list(range(11, 26))
    world.serve(prompt)
    reservation = world.engine.reserve(make_request("late", [*prompt[:9], 1, 2, 3, 4, 5, 6]))
    assert reservation is not None
    assert (reservation.first_page, reservation.num_cached_tokens) == (2, 0)  # there is no state behind two blocks


def run_tokens(world: World) -> list[int]:
    return [token for _ in range(20) for output in world.engine.step() for token in output.token_ids]


def test_a_sequence_that_fails_leaves_no_state() -> None:
    world = World()
    prompt = list(range(11, 26))
    world.executor.broken_after = prompt[-1]
    world.engine.add(make_request("r", prompt))
    assert run(world.engine)["r", 0].finish_reason == "error"
    assert not world.engine.prefix_cache.digests()
    assert world.engine.page_counts()["free"] == world.limits.num_pages


def test_a_worker_reports_the_blocks_that_a_state_stands_behind_and_their_end(world: World) -> None:
    changes = world.engine.prefix_cache.changes
    prompt = list(range(11, 26))
    world.serve(prompt)
    stored, removed = changes.take()
    assert (len(stored), removed) == (1, [])
    assert stored == list(world.engine.prefix_cache.digests())
    world.engine.set_page_limit(0)
    assert changes.take() == ([], stored)
    world.engine.set_page_limit(world.limits.num_pages)
    assert world.serve(prompt) == 0


@pytest.mark.parametrize("layout", ["hybrid", "state only"])
def test_the_router_credits_what_the_engine_finds(layout: str) -> None:
    world, rng = World(layout, num_pages=40, max_model_len=60), Random(5)
    limits = world.limits
    hello = make_hello(
        model=limits.model_id,
        page_tokens=limits.page_tokens,
        num_pages=limits.num_pages,
        keeps_states=True,
        block_tokens=limits.state_block_tokens or 0,
    )
    index, worker, events = PrefixIndex(), WorkerState(hello, 0.0), BlockEvents(world.engine.prefix_cache)
    index.add(worker)
    chats = [[rng.randrange(90) for _ in range(40)] for _ in range(3)]
    found = []
    for number in range(90):
        prompt = chats[number % 3][: rng.randrange(3, 40)] + [99] * rng.randrange(8)
        for message in events.due(float(number)):
            assert not index.apply(worker, message)
        credited = index.cached_tokens(worker, waiting_request(len(prompt), tokens=prompt, request_id=str(number)))
        found.append(world.serve(prompt))
        assert found[-1] == credited
    assert 20 < sum(map(bool, found)) < 90


def test_without_a_prefix_cache_nothing_is_kept_and_no_chunk_is_cut(world: World) -> None:
    world = World("hybrid", prefix_caching=False, max_step_tokens=64)
    assert world.serve(list(range(11, 26)), 8) == 0
    assert world.engine.page_counts()["cached"] == 0
    assert [plan.arrays.num_tokens for plan in world.executor.plans] == [15, *[1] * 7]
    assert not any(plan.state_copies for plan in world.executor.plans)


def _evict(world: World, num_pages: int) -> None:
    """Takes the oldest pages of the cache away, and allows as many again."""
    counts = world.engine.page_counts()
    world.engine.set_page_limit(world.limits.num_pages - counts["free"] - num_pages)
    world.engine.set_page_limit(world.limits.num_pages)
    assert world.engine.page_counts()["cached"] == counts["cached"] - num_pages


def test_a_state_is_not_younger_than_kv_that_was_left_without_one() -> None:
    world = World()
    prompt = list(range(11, 26))
    world.serve(prompt)
    _evict(world, 2)
    assert world.kept(prompt) == []
    world.engine.add(make_request("again", prompt, max_tokens=8, ignore_eos=True))
    while not world.kept(prompt):
        world.engine.step()
    _evict(world, 1)
    assert kept_without_kv(world.engine) == []
    assert world.kept(prompt) == []
    assert run_tokens(world) == world.follows(prompt, 8)[1:]
    world.engine.check_integrity()


def test_what_a_sequence_leaves_is_as_young_as_its_end() -> None:
    world = World()
    long, short = list(range(11, 26)), list(range(41, 56))
    world.engine.add(make_request("long", long, max_tokens=30, ignore_eos=True))
    world.engine.add(make_request("short", short, max_tokens=2, ignore_eos=True))
    run(world.engine)
    assert world.kept(long) == world.kept(short) == [3]
    _evict(world, 5)  # all of the short one
    assert world.kept(short) == []
    assert world.kept(long) == [3]
    _evict(world, 2)  # the state behind the long one's answer
    assert world.kept([*long, *world.follows(long, 30)]) == [3]


def test_what_is_left_of_an_evicted_state_is_no_part_of_the_next_one() -> None:
    world = World()
    prompt = list(range(11, 26))
    world.serve(prompt)
    _evict(world, 1)
    assert world.kept(prompt) == []
    world.engine.add(make_request("again", prompt, max_tokens=2, ignore_eos=True))
    while not world.kept(prompt):
        world.engine.step()
    _evict(world, 1)
    world.engine.check_integrity()
    run(world.engine)
    assert world.serve(prompt) == 0
    assert world.serve(prompt) == 3 * BLOCK
