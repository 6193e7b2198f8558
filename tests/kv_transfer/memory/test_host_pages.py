from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.kv_transfer.api.page_layout import PoolGeometry
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.transports.staging import Staging, StagingError, host_memory
from tests.support.kv_transfer.tickets import pool_bytes


@given(
    page_ids=st.lists(st.integers(0, 63), min_size=1, max_size=20, unique=True),
    share=st.sampled_from([(0, 4), (0, 2), (2, 2), (3, 1)]),
    layer=st.integers(0, 2),
)
def test_gather_and_scatter_move_just_these_heads_of_these_pages(
    page_ids: list[int], share: tuple[int, int], layer: int
) -> None:
    array, other = pool_bytes(1), pool_bytes(2)
    ids = np.asarray(page_ids, np.int64)
    heads = range(share[0], share[0] + share[1])
    staging = np.empty(len(ids) * len(heads) * 64, np.uint8)
    HostPagePool(array).gather(layer, ids, heads, staging)
    expected = array[layer][ids][:, heads.start : heads.stop]
    assert (staging.reshape(expected.shape) == expected).all()

    after = other.copy()
    after[layer, ids, heads.start : heads.stop] = expected
    HostPagePool(other).scatter(layer, ids, heads, staging)
    assert (other == after).all()


def test_the_pool_knows_its_geometry() -> None:
    assert HostPagePool(pool_bytes(1)).geometry == PoolGeometry(3, 64, 4, 64)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 8, 4, 64), np.int8),
        np.zeros((3, 8, 4), np.uint8),
        np.zeros((3, 8, 4, 64), np.uint8)[:, ::2],
        np.broadcast_to(np.zeros(64, np.uint8), (3, 8, 4, 64)),
    ],
)
def test_arrays_that_are_no_pool_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"the pool must be (writable|contiguous uint8)"):
        HostPagePool(array)


def test_heads_that_are_no_equal_share_are_refused() -> None:
    with pytest.raises(ValueError, match="no equal share of 4 heads"):
        HostPagePool(pool_bytes(1)).gather(0, np.zeros(1, np.int64), range(1, 3), np.empty(128, np.uint8))


def test_staging_hands_out_distinct_slots_until_none_is_left() -> None:
    staging = Staging(slot_bytes=5000, total_bytes=3 * 8192, allocate=host_memory)
    taken = [staging.take(5000) for _ in range(3)]
    assert staging.num_free == 0
    for fill, slot in enumerate(taken):
        slot[1][:] = fill
    for fill, slot in enumerate(taken):
        assert (slot[1] == fill).all()
        staging.give_back(slot[0])
    assert staging.num_free == 3


def test_staging_that_cannot_hold_two_messages_is_refused() -> None:
    with pytest.raises(StagingError, match="hold 1 messages of 8192 bytes, at least 2 are needed"):
        Staging(slot_bytes=8192, total_bytes=16383, allocate=host_memory)
