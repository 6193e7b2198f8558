"""The prefix index against a model of itself, and against workers that talk nonsense."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slipstream.router.placement.prefix.holder import BlockEventError
from slipstream.router.placement.prefix.index import EXPECTED_S, PrefixIndex
from slipstream.router.protocol.block_hash import BlockChain, HashChain, pack_block_ids, root_digest, unpack_block_ids
from slipstream.router.protocol.generation import Deadline, GenerateRequest, Levels
from slipstream.router.protocol.messages import BlocksChanged, Role, SamplingParams, pack_ids
from slipstream.router.registry.worker_registry import WorkerState
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.requests.output_log import OutputLog
from slipstream.router.requests.request_state import RequestState
from tests.support.router.greetings import make_hello

PAGE_TOKENS = 4
NUMBERS = count()


def make_worker(
    name: str = "d", role: Role = "decode", num_pages: int = 64, prefix_caching: bool = True, **fields: Any
) -> WorkerState:
    values = {"page_tokens": PAGE_TOKENS, "num_pages": num_pages, "prefix_caching": prefix_caching, **fields}
    return WorkerState(make_hello(name, role, **values), 0.0)


def make_request(prompt: Iterable[int], salt: str = "") -> RequestState:
    request_id = f"r{next(NUMBERS)}"
    request = GenerateRequest(request_id, pack_ids(prompt), SamplingParams(max_tokens=1000), cache_salt=salt)
    assert isinstance(request.prompt_ids, bytes)
    record = RequestRecord(request_id, "", 0, len(request.prompt_ids) // 4, Timeline(0.0))
    levels, deadline = Levels(0.5, 0.05), Deadline("request_timeout_s", 600.0)
    return RequestState(request, request.prompt_ids, OutputLog(1000), record, levels, deadline)


def blocks(tokens: Iterable[int], salt: str = "") -> bytes:
    """The packed ids that a worker tells for the full pages of `tokens`."""
    ids = array("i", tokens)
    chain = HashChain(root_digest("m", salt), PAGE_TOKENS)
    chain.extend(ids, len(ids) // PAGE_TOKENS)
    return pack_block_ids(chain.digests)


def make_index(*workers: WorkerState) -> PrefixIndex:
    index = PrefixIndex()
    for worker in workers:
        index.add(worker)
    return index


def test_router_and_worker_give_a_page_the_same_name() -> None:
    tokens = [1_000_000 + 7 * i for i in range(4 * PAGE_TOKENS + 3)]
    chain = BlockChain(root_digest("m", "s"), PAGE_TOKENS)
    chain.extend(pack_ids(tokens[: PAGE_TOKENS + 1]))
    chain.extend(pack_ids(tokens))  # on from where it was
    assert chain.ids == list(unpack_block_ids(blocks(tokens, "s")))
    assert len(chain.ids) == 4


def test_longest_hits_come_first_and_of_the_role_that_was_asked_for() -> None:
    a, b, c, p = make_worker("a"), make_worker("b"), make_worker("c"), make_worker("p", "prefill")
    index = make_index(a, b, c, p)
    prompt = range(20)
    for worker, num_tokens in ((a, 8), (b, 12), (p, 16)):
        index.apply(worker, BlocksChanged(1, False, blocks(range(num_tokens)), b""))
    assert index.best(make_request(prompt), "decode", 8) == [(b, 12), (a, 8)]
    assert index.best(make_request(prompt), "decode", 1) == [(b, 12)]
    assert index.best(make_request(prompt), "prefill", 8) == [(p, 16)]
    b.draining = True
    assert index.best(make_request(prompt), "decode", 8) == [(a, 8)]


def test_the_last_token_is_never_counted_as_cached() -> None:
    worker = make_worker()
    index = make_index(worker)
    index.apply(worker, BlocksChanged(1, False, blocks(range(8)), b""))
    assert index.cached_tokens(worker, make_request(range(8))) == 4
    assert index.cached_tokens(worker, make_request(range(9))) == 8


def test_a_hole_in_the_middle_ends_the_hit() -> None:
    worker = make_worker()
    index = make_index(worker)
    packed = blocks(range(16))
    index.apply(worker, BlocksChanged(1, False, packed, b""))
    index.apply(worker, BlocksChanged(2, False, b"", packed[8:16]))
    assert index.cached_tokens(worker, make_request(range(20))) == 4


@pytest.mark.parametrize("page_tokens", [PAGE_TOKENS, 4096])
def test_where_states_are_kept_a_block_stands_for_all_before_it_and_for_no_part_of_them(page_tokens: int) -> None:
    fields = {"page_tokens": page_tokens, "keeps_states": True, "block_tokens": PAGE_TOKENS}
    worker, other, dense = make_worker("a", **fields), make_worker("b", **fields), make_worker("c")
    index = make_index(worker, other) if page_tokens != PAGE_TOKENS else make_index(worker, other, dense)
    packed = blocks(range(20))
    index.apply(worker, BlocksChanged(1, False, packed[8:16] + packed[32:40], b""))  # behind 2 and 5 blocks
    index.apply(other, BlocksChanged(1, False, packed[24:32], b""))  # behind 4
    assert index.best(make_request(range(23)), "decode", 8) == [(worker, 20), (other, 16)]
    assert index.best(make_request(range(20)), "decode", 8) == [(other, 16), (worker, 8)]
    assert index.cached_tokens(worker, make_request(range(16))) == 8
    assert index.cached_tokens(worker, make_request(range(8))) == 0
    index.apply(worker, BlocksChanged(2, False, b"", packed[32:40]))
    assert index.cached_tokens(worker, make_request(range(23))) == 8
    assert index.held_tokens(worker, make_request(range(23))) == 8
    if page_tokens == PAGE_TOKENS:
        index.apply(dense, BlocksChanged(1, False, packed[:24], b""))
        assert index.best(make_request(range(23)), "decode", 8) == [(other, 16), (dense, 12), (worker, 8)]
    index.check_integrity()


def test_of_a_request_only_the_state_behind_its_last_full_block_is_expected() -> None:
    worker, receiver = make_worker("a", keeps_states=True), make_worker("b", keeps_states=True)
    index = make_index(worker, receiver)
    index.expect(worker, make_request(range(18)), 0.0)
    index.expect(receiver, make_request(range(18)), 0.0, is_computed=False)  # its state comes at another place
    index.expect(worker, make_request(range(100, 103)), 0.0)  # no full block
    assert index.cached_tokens(worker, make_request(range(30))) == 16
    assert index.held_tokens(worker, make_request(range(30))) == 0
    assert index.cached_tokens(worker, make_request(range(15))) == 0
    assert index.cached_tokens(receiver, make_request(range(30))) == 0
    index.expire(EXPECTED_S)
    assert index.cached_tokens(worker, make_request(range(30))) == 0
    index.check_integrity()


def test_salts_do_not_see_each_other() -> None:
    worker = make_worker()
    index = make_index(worker)
    index.apply(worker, BlocksChanged(1, False, blocks(range(8), "one"), b""))
    index.expect(worker, make_request(range(8), "two"), 0.0)
    assert index.cached_tokens(worker, make_request(range(9), "one")) == 8
    assert index.cached_tokens(worker, make_request(range(9), "two")) == 8
    assert index.cached_tokens(worker, make_request(range(9), "three")) == 0
    assert index.cached_tokens(worker, make_request(range(9))) == 0


def test_output_so_far_counts_like_the_prompt() -> None:
    worker = make_worker()
    index = make_index(worker)
    index.apply(worker, BlocksChanged(1, False, blocks(range(16)), b""))
    request = make_request(range(6))
    assert index.cached_tokens(worker, request) == 4
    request.output.ids.extend(range(6, 17))
    assert index.cached_tokens(worker, request) == 16


def test_expected_blocks_count_until_their_time_is_over() -> None:
    worker, other = make_worker("a"), make_worker("b")
    index = make_index(worker, other)
    index.expect(worker, make_request(range(8)), 1.0)
    index.expect(worker, make_request(range(12)), 2.0)  # renews the first two
    later = make_request(range(13))
    index.expire(1.0 + EXPECTED_S)
    assert index.cached_tokens(worker, later) == 12
    assert index.cached_tokens(other, later) == 0
    index.apply(worker, BlocksChanged(1, False, blocks(range(8)), b""))
    index.expire(2.0 + EXPECTED_S)
    assert index.cached_tokens(worker, later) == 8
    index.check_integrity()


def test_what_a_later_request_expects_stays_when_an_earlier_one_is_given_up() -> None:
    worker = make_worker()
    index = make_index(worker)
    earlier, later = make_request(range(8)), make_request(range(12))
    index.expect(worker, later, 2.0)
    index.expect(worker, earlier, 1.0)  # whose prefill is converted only now
    index.give_up(worker, earlier, 1.0)
    index.expire(1.0 + EXPECTED_S)
    assert index.cached_tokens(worker, make_request(range(13))) == 12
    index.expire(2.0 + EXPECTED_S)
    assert index.cached_tokens(worker, make_request(range(13))) == 0
    index.check_integrity()


def test_placements_of_a_lost_worker_expire_without_harm() -> None:
    worker, other = make_worker("a"), make_worker("b")
    index = make_index(worker)
    index.expect(worker, make_request(range(8)), 0.0)
    index.remove(worker)
    index.add(other)  # in the place of the first one
    index.expect(other, make_request(range(8)), 1.0)
    index.expire(EXPECTED_S)
    assert index.cached_tokens(other, make_request(range(9))) == 8
    index.check_integrity()


def test_entries_of_a_lost_worker_count_for_nothing_and_go_bit_by_bit() -> None:
    worker, other, third = make_worker("a", num_pages=5000), make_worker("b", num_pages=5000), make_worker("c")
    index = make_index(worker)
    index.apply(worker, BlocksChanged(1, True, blocks(range(12_000)), b""))
    index.remove(worker)
    assert index.best(make_request(range(40)), "decode", 8) == []
    index.add(other)
    index.apply(other, BlocksChanged(1, False, blocks(range(8)), b""))
    assert index.best(make_request(range(40)), "decode", 8) == [(other, 8)]
    index.remove(other)
    index.add(third)
    seq = 0
    while index.status.num_entries:
        index.check_integrity()
        seq += 1
        assert seq < 30
        index.apply(third, BlocksChanged(seq, False, b"", b""))
    index.check_integrity()


def test_a_gap_asks_once_for_a_snapshot_and_believes_nothing_before_it() -> None:
    worker = make_worker()
    index = make_index(worker)
    request = make_request(range(20))
    assert not index.apply(worker, BlocksChanged(1, False, blocks(range(8)), b""))
    assert index.apply(worker, BlocksChanged(3, False, b"", blocks(range(4))))
    assert not index.apply(worker, BlocksChanged(4, False, blocks(range(16)), b""))
    assert not index.apply(worker, BlocksChanged(9, False, blocks(range(16)), b""))
    assert index.cached_tokens(worker, request) == 8
    assert not index.apply(worker, BlocksChanged(10, True, blocks(range(4)), b""))
    assert index.cached_tokens(worker, request) == 4
    assert not index.apply(worker, BlocksChanged(11, False, blocks(range(12)), b""))  # its second part
    assert index.cached_tokens(worker, request) == 12
    assert index.apply(worker, BlocksChanged(13, False, b"", b""))
    status = index.status
    assert (status.num_gaps, status.num_snapshots) == (2, 1)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (BlocksChanged(0, False, b"", b""), "seq 0 came after 0"),
        (BlocksChanged(-1, True, b"", b""), "seq -1 came after 0"),
        (BlocksChanged(1, False, b"1234567", b""), "8 bytes"),
        (BlocksChanged(1, False, b"", b"123456789"), "8 bytes"),
        (BlocksChanged(1, True, b"", b"12345678"), "a snapshot removes"),
        (BlocksChanged(1, False, blocks(range(12)), b""), "3 blocks in 2 pages"),
    ],
)
def test_nonsense_is_refused(message: BlocksChanged, reason: str) -> None:
    worker = make_worker(num_pages=2)
    index = make_index(worker)
    with pytest.raises(BlockEventError, match=reason):
        index.apply(worker, message)


def test_a_worker_cannot_fill_the_index_beyond_its_pages_bit_by_bit() -> None:
    worker = make_worker(num_pages=2)
    index = make_index(worker)
    index.apply(worker, BlocksChanged(1, False, blocks(range(8)), b""))
    with pytest.raises(BlockEventError, match="3 blocks in 2 pages"):
        index.apply(worker, BlocksChanged(2, False, blocks(range(50, 54)), b""))
    index.remove(worker)
    index.check_integrity()
    assert index.status.num_entries == 0


def test_blocks_of_a_worker_without_a_prefix_cache_are_nonsense_and_none_are_expected() -> None:
    worker = make_worker(prefix_caching=False)
    index = make_index(worker)
    index.expect(worker, make_request(range(8)), 0.0)
    assert index.cached_tokens(worker, make_request(range(9))) == 0
    with pytest.raises(BlockEventError, match="without prefix caching"):
        index.apply(worker, BlocksChanged(1, False, b"", b""))


def test_a_full_index_learns_nothing_more_until_there_is_room() -> None:
    a, b = make_worker("a"), make_worker("b")
    index = PrefixIndex(max_entries=3)
    index.add(a)
    index.add(b)
    index.apply(a, BlocksChanged(1, False, blocks(range(8)), b""))
    index.apply(b, BlocksChanged(1, False, blocks(range(8)), b""))
    index.expect(a, make_request(range(16)), 0.0)
    index.check_integrity()
    assert (index.status.num_entries, index.status.num_dropped) == (3, 1)
    index.remove(a)
    index.apply(b, BlocksChanged(2, False, blocks(range(12)), blocks(range(8))))
    index.check_integrity()
    assert index.cached_tokens(b, make_request(range(13))) == 12


def test_predictions_are_scored() -> None:
    index = PrefixIndex()
    index.observe(32, 16)
    index.observe(0, 48)
    status = index.status
    assert (status.predicted_tokens, status.found_tokens, status.confirmed_tokens) == (32, 64, 16)


NAMES = ("a", "b", "c", "p")
PROMPTS = st.lists(st.sampled_from((1, 2)), min_size=1, max_size=18)  # few tokens: many common prefixes


class Model(RuleBasedStateMachine):
    """Sets of whole token prefixes in place of hashes and bits."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.now = 0.0
        self.workers: dict[str, WorkerState] = {}
        self.held: dict[str, set[tuple[int, ...]]] = {}
        self.expected: dict[str, dict[tuple[int, ...], float]] = {}
        self.seq: dict[str, int] = defaultdict(int)
        self.is_cut: dict[str, bool] = {}
        self.placed: list[tuple[WorkerState, RequestState, list[int], float]] = []

    @initialize()
    def begin(self) -> None:
        self.join("a")

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        if name in self.workers:
            return
        worker = make_worker(name, "prefill" if name == "p" else "decode", num_pages=1000)
        self.index.add(worker)
        self.workers[name] = worker
        self.held[name], self.expected[name], self.is_cut[name] = set(), {}, False
        self.seq[name] = 0

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        name = self.some(data)
        self.index.remove(self.workers.pop(name))
        del self.held[name], self.expected[name], self.is_cut[name]

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), stored=PROMPTS, removed=PROMPTS, skip=st.sampled_from((0, 0, 0, 3)))
    def change(self, data: st.DataObject, stored: list[int], removed: list[int], skip: int) -> None:
        name = self.some(data)
        self.seq[name] += 1 + skip
        is_missing = self.index.apply(
            self.workers[name], BlocksChanged(self.seq[name], False, blocks(stored), blocks(removed))
        )
        assert is_missing == (skip > 0 and not self.is_cut[name])
        self.is_cut[name] |= skip > 0
        if not self.is_cut[name]:
            self.held[name] -= pages(removed)
            self.held[name] |= pages(stored)
            self.expected[name] = {p: t for p, t in self.expected[name].items() if p not in pages(stored)}

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), first=PROMPTS, second=PROMPTS)
    def snapshot(self, data: st.DataObject, first: list[int], second: list[int]) -> None:
        name = self.some(data)
        for is_first, part in ((True, first), (False, second)):
            self.seq[name] += 1
            assert not self.index.apply(self.workers[name], BlocksChanged(self.seq[name], is_first, blocks(part), b""))
        self.is_cut[name] = False
        self.held[name] = pages(first) | pages(second)
        self.expected[name] = {p: t for p, t in self.expected[name].items() if p not in self.held[name]}

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), prompt=PROMPTS)
    def place(self, data: st.DataObject, prompt: list[int]) -> None:
        name = self.some(data)
        request = make_request(prompt)
        self.index.expect(self.workers[name], request, self.now)
        self.placed.append((self.workers[name], request, prompt, self.now))
        self.expected[name] |= dict.fromkeys(pages(prompt) - self.held[name], self.now + EXPECTED_S)

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        worker, request, prompt, placed_s = self.placed.pop(data.draw(st.integers(0, len(self.placed) - 1)))
        self.index.give_up(worker, request, placed_s)
        if self.workers.get(worker.name) is worker:
            until, gone = placed_s + EXPECTED_S, pages(prompt)
            expected = self.expected[worker.name].items()
            self.expected[worker.name] = {p: t for p, t in expected if p not in gone or t != until}

    @rule(seconds=st.sampled_from((0.5, 3.0, EXPECTED_S)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.index.expire(self.now)
        for name, expected in self.expected.items():
            self.expected[name] = {p: t for p, t in expected.items() if t > self.now}

    @rule(prompt=PROMPTS)
    def look_up(self, prompt: list[int]) -> None:
        request = make_request(prompt)
        true = {name: self.hit(name, prompt) for name in self.workers}
        assert {name: self.index.cached_tokens(w, request) for name, w in self.workers.items()} == true
        for role in ("decode", "prefill"):
            found = self.index.best(request, role, 8)
            assert {w.name: n for w, n in found} == {
                name: n for name, n in true.items() if n and self.workers[name].hello.role == role
            }
            assert [n for _, n in found] == sorted((n for _, n in found), reverse=True)

    @invariant()
    def is_whole(self) -> None:
        self.index.check_integrity()

    def some(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.workers)))

    def hit(self, name: str, prompt: list[int]) -> int:
        known = self.held[name] | self.expected[name].keys()
        num_pages = 0
        while (num_pages + 1) * PAGE_TOKENS < len(prompt) and tuple(prompt[: (num_pages + 1) * PAGE_TOKENS]) in known:
            num_pages += 1
        return num_pages * PAGE_TOKENS


def pages(tokens: list[int]) -> set[tuple[int, ...]]:
    return {tuple(tokens[:end]) for end in range(PAGE_TOKENS, len(tokens) + 1, PAGE_TOKENS)}


TestAgainstModel = Model.TestCase
TestAgainstModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
