"""Where the tokens of a step come to lie."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch


def sequence(start: int, token_ids: list[int], page_ids: list[int], samples: bool) -> SequenceSlice:
    return SequenceSlice(start, tuple(token_ids), np.array(page_ids, np.int32).tobytes(), samples)


def test_sequences_lie_one_after_the_other_with_their_slots() -> None:
    batch = StepBatch.build(
        [
            sequence(3, [10, 11, 12], [7, 2], samples=False),
            sequence(8, [20], [5, 9, 1], samples=True),
            sequence(0, [30, 31], [4], samples=True),
        ],
        page_tokens=4,
    )
    assert batch.token_ids.tolist() == [10, 11, 12, 20, 30, 31]
    assert batch.positions.tolist() == [3, 4, 5, 8, 0, 1]
    assert batch.slots.tolist() == [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 1 * 4, 4 * 4, 4 * 4 + 1]
    assert batch.query_lens == (3, 1, 2)
    assert batch.kv_lens == (6, 9, 2)
    assert batch.page_table.tolist() == [[7, 2, 0], [5, 9, 1], [4, 0, 0]]
    assert batch.sample_indices.tolist() == [3, 5]
    assert len(batch.token_ids) == 6


@pytest.mark.parametrize(
    ("start", "count", "fresh"),
    [(0, 3, [7]), (0, 4, []), (0, 6, [2]), (3, 1, []), (4, 1, [2]), (5, 1, []), (2, 6, [])],
)
def test_fresh_pages_are_those_that_the_step_begins_and_does_not_fill(start: int, count: int, fresh: list[int]) -> None:
    pages = [7, 2][: -(-(start + count) // 4)]
    batch = StepBatch.build([sequence(start, [1] * count, pages, samples=True)], page_tokens=4)
    assert batch.fresh_pages.tolist() == fresh
