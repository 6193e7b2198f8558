"""Host memory for a rank's KV pool."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from slipstream.kv_transfer.memory.pool_memory import PoolMemory


class KvMemory:
    """Allocates the memory once the pool's size is known, and keeps it in `pool`, which stays None if the KV pool is in
    device memory. If it `is_shared`, workers on the same host can read it. If it `is_elastic`, a page takes memory when
    it is first written, until `return_pages`."""

    def __init__(self, *, is_shared: bool, is_elastic: bool = False) -> None:
        self.pool: PoolMemory | None = None
        self.is_elastic = is_elastic
        self._is_shared = is_shared
        self._num_layers = self._num_pages = self._page_bytes = 0  # `_page_bytes`: of a page in one layer

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The pool as a tensor `[layers, pages, ...]`. Its memory is written and not just mapped, so that no request
        pays for page faults; not if it is elastic."""
        self.pool = PoolMemory(math.prod(shape) * dtype.itemsize, is_shared=self._is_shared, is_elastic=self.is_elastic)
        self._num_layers, self._num_pages = shape[:2]
        self._page_bytes = math.prod(shape[2:]) * dtype.itemsize
        pool = torch.frombuffer(self.pool.buffer, dtype=dtype).view(shape)
        if self.is_elastic:
            return pool
        self.pool.take()
        return pool.zero_()

    def return_pages(self, page_ids: Sequence[int]) -> None:
        """Return the memory of these pages, which are in order and hold nothing, to the system. They are zero when they
        are next used. What a page shares with a neighbour that is not among them stays: less than one page of the
        machine at either end of a run and in each layer. Raises OSError."""
        assert self.pool is not None
        for layer in range(self._num_layers):
            before = layer * self._num_pages
            for first, end in _runs(page_ids):
                self.pool.give_back((before + first) * self._page_bytes, (before + end) * self._page_bytes)

    def close(self) -> None:
        """Hands the pool out to no other process any more. Its memory stays for as long as it is mapped."""
        if self.pool is not None:
            self.pool.close()


def _runs(page_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers, as first and end."""
    if not page_ids:
        return
    first = end = page_ids[0]
    for page in page_ids:
        if page != end:
            yield first, end
            first = page
        end = page + 1
    yield first, end
