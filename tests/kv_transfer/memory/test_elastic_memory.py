"""Memory of KV pools that is returned to the system page by page, while others may map it."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.kv_transfer.memory.pool_memory import PoolMemory, view_of
from slipstream.workers.engine.kv_cache.kv_memory import KvMemory

LAYERS, PAGES, PAGE_BYTES = 3, 64, 2 * mmap.PAGESIZE


def resident_bytes(memory: PoolMemory) -> int:
    """What the kernel has given the mapping that the buffer lies in."""
    address, is_ours, num_kib = memory.buffer.ctypes.data, False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            begin, end = (int(place, 16) for place in name.split("-"))
            is_ours = begin <= address < end
        elif is_ours and name == "Rss:":
            num_kib += int(values[0])
    return num_kib << 10


def elastic(*, is_shared: bool) -> tuple[KvMemory, PoolMemory, torch.Tensor]:
    memory = KvMemory(is_shared=is_shared, is_elastic=True)
    kv = memory.zeros((LAYERS, PAGES, PAGE_BYTES), torch.uint8)
    assert memory.pool is not None
    return memory, memory.pool, kv


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_page_takes_memory_when_it_is_written_and_no_longer_than_until_it_is_returned(is_shared: bool) -> None:
    memory, pool, kv = elastic(is_shared=is_shared)
    assert resident_bytes(pool) == 0
    kv[:, 3:10] = 7
    assert resident_bytes(pool) == LAYERS * 7 * PAGE_BYTES
    memory.return_pages([4, 5, 8])
    assert resident_bytes(pool) == LAYERS * 4 * PAGE_BYTES
    assert kv[:, [3, 6, 7, 9]].unique().tolist() == [7]
    kv[1, 4, 5] = 9
    assert resident_bytes(pool) == (LAYERS * 4 + 1) * PAGE_BYTES - mmap.PAGESIZE
    assert kv[:, [4, 5, 8]].sum().item() == 9
    memory.return_pages([])
    memory.return_pages(range(PAGES))
    assert resident_bytes(pool) == 0
    pool.close()


def test_a_peer_that_still_reads_a_returned_page_finds_zeros_and_lives() -> None:
    memory, pool, kv = elastic(is_shared=True)
    kv[:] = 7
    assert pool.file is not None
    view = view_of(pool.file, LAYERS * PAGES * PAGE_BYTES).reshape(LAYERS, PAGES, PAGE_BYTES)
    assert (view == 7).all()
    memory.return_pages([0, 63])
    assert not view[:, [0, 63]].any()
    assert (view[:, 1:63] == 7).all()
    kv[2, 63, 1] = 5
    assert view[2, 63, 1] == 5
    pool.close()


def test_pages_smaller_than_those_of_the_machine_keep_their_neighbours() -> None:
    memory = KvMemory(is_shared=True, is_elastic=True)
    kv = memory.zeros((2, 16, mmap.PAGESIZE // 4), torch.uint8)
    kv[:] = 7
    memory.return_pages([2, 3, 4, 5, 6, 7, 8, 9])
    others = kv[:, [0, 1, *range(10, 16)]]
    assert others.unique().tolist() == [7]
    assert not np.asarray(kv[:, 4:8]).any()
    assert memory.pool is not None
    memory.pool.close()
