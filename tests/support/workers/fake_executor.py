"""An executor whose tokens depend on every byte of KV that a sequence sees, and on nothing else."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays

STATE = -2  # where a page holds a state, the position of its first token; less by one in each further page
GROUP = 1_000_000  # how far apart the positions of page groups are, so that none's page can stand for another's


class FakeExecutor:
    """Its KV is the token itself and its position, in each page group. The next token is a hash of the KV of all
    positions so far, or of those that groups with a window see, read through the sequence's pages: a page that is
    shared wrongly, taken away too early, not filled or filled twice leads to other tokens than `next_token` says.

    With `num_state_pages` a sequence has a state, too, a hash of all its tokens that each step reads, and writes into
    all of these pages. If `is_state_only`, nothing else is stored: the only page of a sequence holds its state.
    """

    def __init__(
        self,
        num_pages: int,
        page_tokens: int,
        vocab_size: int,
        windows: tuple[int | None, ...] = (None,),
        num_state_pages: int = 0,
        *,
        is_state_only: bool = False,
    ) -> None:
        self.kv = np.full((num_pages, page_tokens, 2), -1, np.int32)
        self.plans: list[StepPlan] = []  # with arrays of their own
        self.pinned: Counter[int] = Counter()  # pages that a transfer may touch: a step must not write them
        self.broken_after: int | None = None  # sequences that end with this token get no other
        self._vocab_size = vocab_size
        self._windows = windows
        self._num_state_pages = num_state_pages
        self._is_state_only = is_state_only

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        arrays = dataclasses.replace(plan.arrays.pack().unpack(), state_pages=plan.arrays.state_pages.copy())
        self.plans.append(dataclasses.replace(plan, arrays=arrays))
        for copy in plan.state_copies:
            assert not any(self.pinned[page] for page in copy.to), "a page belongs to a transfer"
            assert len(copy.source) == len(copy.to)
            self.kv[copy.to.tolist()] = self.kv[copy.source.tolist()]
        groups = [slices_of(of_group, self.kv.shape[1]) for of_group in by_group(arrays)]
        assert len(groups) == len(self._windows)
        if self._is_state_only:
            states = self._continue_states(groups[0], arrays.page_table[:, :1].tolist())
            return SampledTokens(
                [
                    int(xxh3_64_intdigest(state) % self._vocab_size)
                    for s, state in zip(groups[0], states, strict=True)
                    if s.samples
                ]
            )
        self._write(groups)
        states = self._continue_states(groups[0], arrays.state_pages.tolist())
        if self._windows != (None,):  # else the next token says it
            for window, slices in zip(self._windows, groups, strict=True):
                self._check_window(window, slices)
        sampled = [
            None if of_seq[0].token_ids[-1] == self.broken_after else self._next(of_seq, state)
            for *of_seq, state in zip(*groups, states, strict=True)
            if of_seq[0].samples
        ]
        assert plan.greedy or len(sampled) == len(sampling)
        return SampledTokens(sampled)

    def fill(self, page_ids: Sequence[int], first_page: int, tokens: Sequence[int]) -> None:
        """What a transfer does: bring the KV of `tokens`, from page number `first_page` of the sequence on, here."""
        page_tokens = self.kv.shape[1]
        for position in range(first_page * page_tokens, len(tokens)):
            page = page_ids[position // page_tokens - first_page]
            self.kv[page, position % page_tokens] = tokens[position], position

    def fill_list(self, page_ids: Sequence[int], places: Sequence[tuple[int, int]], tokens: Sequence[int]) -> None:
        """What a transfer of a list of pages does. `places` are the block and the group of each, or STATE and the
        number of a page of the state."""
        page_tokens = self.kv.shape[1]
        for page, (block, group) in zip(page_ids, places, strict=True):
            if block == STATE:
                self.kv[page, 0] = state_after(tokens), STATE - group
                continue
            for position in range(block * page_tokens, min((block + 1) * page_tokens, len(tokens))):
                self.kv[page, position % page_tokens] = tokens[position], position + GROUP * group

    def _write(self, groups: Sequence[list[SequenceSlice]]) -> None:
        page_tokens = self.kv.shape[1]
        written: set[tuple[int, int]] = set()
        for group, s in ((group, s) for group, slices in enumerate(groups) for s in slices):
            assert s.token_ids, "a slice without tokens"
            pages = np.frombuffer(s.page_ids, np.int32).tolist()
            assert len(pages) == -(-s.end // page_tokens)
            for position, token_id in enumerate(s.token_ids, s.start):
                page, offset = pages[position // page_tokens], position % page_tokens
                assert (page, offset) not in written, f"page {page} is written twice in a step"
                written.add((page, offset))
                assert not self.pinned[page], f"page {page} belongs to a transfer"
                self.kv[page, offset] = token_id, position + GROUP * group

    def _check_window(self, window: int | None, slices: list[SequenceSlice]) -> None:
        """Whatever the first query of each slice sees is there."""
        for s in slices:
            first = 0 if window is None else max(0, s.start - window + 1)
            seen = self._seen(s, first)[:, 1] % GROUP
            assert seen.tolist() == list(range(first, s.end)), f"keys {first} .. {s.end} are {seen}"

    def _continue_states(self, slices: list[SequenceSlice], pages: list[list[int]]) -> list[bytes]:
        """Reads the state of each sequence, and writes it with the new tokens; none of a sequence that begins."""
        if not self._num_state_pages:
            return [b""] * len(slices)
        states = []
        for s, own in zip(slices, pages, strict=True):
            assert len(own) == self._num_state_pages
            state = int(self.kv[own[0], 0, 0]) if s.start else 0
            for at, page in enumerate(own):
                assert not self.pinned[page], f"page {page} belongs to a transfer"
                assert not s.start or self.kv[page, 0].tolist() == [state, STATE - at], f"no state in page {page}"
                self.kv[page, 0] = state_after(s.token_ids, state), STATE - at
            states.append(self.kv[own[0], 0, :1].tobytes())
        return states

    def _next(self, of_seq: Sequence[SequenceSlice], state: bytes) -> int:
        firsts = [0 if window is None else max(0, of_seq[0].end - window) for window in self._windows]
        seen = [self._seen(s, first).tobytes() for s, first in zip(of_seq, firsts, strict=True)]
        return int(xxh3_64_intdigest(b"".join(seen) + state) % self._vocab_size)

    def _seen(self, s: SequenceSlice, first: int) -> NDArray[np.int32]:
        """The KV of positions `first .. s.end`, [positions, 2]."""
        page_tokens = self.kv.shape[1]
        first_page = first // page_tokens
        pages = np.frombuffer(s.page_ids, np.int32)[first_page:]
        return self.kv[pages].reshape(-1, 2)[first - first_page * page_tokens : s.end - first_page * page_tokens]


def by_group(arrays: StepArrays) -> Iterator[StepArrays]:
    """The arrays of each page group, as if it were the only one."""
    yield dataclasses.replace(arrays, groups=())
    for group in arrays.groups:
        yield dataclasses.replace(arrays, slots=group.slots, page_table=group.page_table, groups=())


def slices_of(arrays: StepArrays, page_tokens: int) -> list[SequenceSlice]:
    """The arrays read back, and checked where they say the same thing twice."""
    slices = []
    starts = arrays.query_starts.tolist()
    samples = set(arrays.sample_rows.tolist())
    assert sorted(samples) == arrays.sample_rows.tolist()
    assert samples <= {end - 1 for end in starts[1:]}
    for row, (first, end) in enumerate(pairwise(starts)):
        kv_len = int(arrays.kv_lens[row])
        pages = arrays.page_table[row, : -(-kv_len // page_tokens)]
        positions = arrays.positions[first:end]
        assert positions.tolist() == list(range(kv_len - (end - first), kv_len))
        assert (
            arrays.slots[first:end] == pages[positions // page_tokens] * page_tokens + positions % page_tokens
        ).all()
        token_ids = tuple(arrays.token_ids[first:end].tolist())
        slices.append(SequenceSlice(int(positions[0]), token_ids, pages.tobytes(), end - 1 in samples))
    return slices


def state_after(tokens: Sequence[int], state: int = 0) -> int:
    """That of an executor with states, after it was `state` and these tokens came."""
    for token_id in tokens:
        state = xxh3_64_intdigest(np.array([state, token_id], np.int32).tobytes()) % 2**31
    return state


def next_token(
    tokens: Sequence[int],
    vocab_size: int,
    windows: tuple[int | None, ...] = (None,),
    *,
    has_state: bool = False,
    is_state_only: bool = False,
) -> int:
    """What the executor must say after `tokens`."""
    seen = b""
    for group, window in enumerate(() if is_state_only else windows):
        first = 0 if window is None else max(0, len(tokens) - window)
        positions = np.arange(first, len(tokens), dtype=np.int32) + GROUP * group
        of_group = np.stack([np.array(tokens[first:], np.int32), positions.astype(np.int32)], axis=1)
        seen += np.ascontiguousarray(of_group).tobytes()
    if has_state:
        seen += np.array([state_after(tokens)], np.int32).tobytes()
    return int(xxh3_64_intdigest(seen) % vocab_size)


def continuation(tokens: Sequence[int], num_tokens: int, vocab_size: int) -> list[int]:
    """The `num_tokens` tokens that follow."""
    known = list(tokens)
    for _ in range(num_tokens):
        known.append(next_token(known, vocab_size))
    return known[len(tokens) :]
