"""An executor whose tokens depend on every byte of KV that a sequence sees, and on nothing else."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from xxhash import xxh3_64_intdigest

from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays


class FakeExecutor:
    """Its KV is the token itself and its position. The next token is a hash of the KV of all positions so far, read
    through the sequence's pages: a page that is shared wrongly, taken away too early, not filled or filled twice
    leads to other tokens than `next_token` says.
    """

    def __init__(self, num_pages: int, page_tokens: int, vocab_size: int) -> None:
        self.kv = np.full((num_pages, page_tokens, 2), -1, np.int32)
        self.plans: list[StepPlan] = []  # with arrays of their own
        self.pinned: Counter[int] = Counter()  # pages that a transfer may touch: a step must not write them
        self.broken_after: int | None = None  # sequences that end with this token get no other
        self._vocab_size = vocab_size

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        arrays = plan.arrays.pack().unpack()
        self.plans.append(dataclasses.replace(plan, arrays=arrays))
        slices = slices_of(arrays, self.kv.shape[1])
        self._write(slices)
        sampled = [
            None if s.token_ids[-1] == self.broken_after else self._next(s.page_ids, s.end) for s in slices if s.samples
        ]
        assert plan.greedy or len(sampled) == len(sampling)
        return SampledTokens(sampled)

    def fill(self, page_ids: Sequence[int], first_page: int, tokens: Sequence[int]) -> None:
        """What a transfer does: bring the KV of `tokens`, from page number `first_page` of the sequence on, here."""
        page_tokens = self.kv.shape[1]
        for position in range(first_page * page_tokens, len(tokens)):
            page = page_ids[position // page_tokens - first_page]
            self.kv[page, position % page_tokens] = tokens[position], position

    def _write(self, slices: list[SequenceSlice]) -> None:
        page_tokens = self.kv.shape[1]
        written: set[tuple[int, int]] = set()
        for s in slices:
            assert s.token_ids, "a slice without tokens"
            pages = np.frombuffer(s.page_ids, np.int32).tolist()
            assert len(pages) == -(-s.end // page_tokens)
            for position, token_id in enumerate(s.token_ids, s.start):
                page, offset = pages[position // page_tokens], position % page_tokens
                assert (page, offset) not in written, f"page {page} is written twice in a step"
                written.add((page, offset))
                assert not self.pinned[page], f"page {page} belongs to a transfer"
                self.kv[page, offset] = token_id, position

    def _next(self, page_ids: bytes, end: int) -> int:
        seen = self.kv[np.frombuffer(page_ids, np.int32)].reshape(-1, 2)[:end]
        return int(xxh3_64_intdigest(seen.tobytes()) % self._vocab_size)


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


def next_token(tokens: Sequence[int], vocab_size: int) -> int:
    """What the executor must say after `tokens`."""
    seen = np.stack([np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32)], axis=1)
    return int(xxh3_64_intdigest(np.ascontiguousarray(seen).tobytes()) % vocab_size)


def continuation(tokens: Sequence[int], num_tokens: int, vocab_size: int) -> list[int]:
    """The `num_tokens` tokens that follow."""
    known = list(tokens)
    for _ in range(num_tokens):
        known.append(next_token(known, vocab_size))
    return known[len(tokens) :]
