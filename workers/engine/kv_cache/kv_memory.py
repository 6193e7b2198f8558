"""Host memory for a rank's KV pool."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.kv_transfer.memory.pool_memory import PoolMemory


class KvMemory:
    """Allocates the memory once the pool's size is known, and keeps it in `pool`, which stays None if the KV pool is in
    device memory. If it `is_shared`, workers on the same host can read it."""

    def __init__(self, *, is_shared: bool) -> None:
        self.pool: PoolMemory | None = None
        self._is_shared = is_shared

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The pool as a tensor. Its memory is written and not just mapped, so that no request pays for page faults."""
        self.pool = PoolMemory(math.prod(shape) * dtype.itemsize, is_shared=self._is_shared)
        self.pool.take()
        return torch.frombuffer(self.pool.buffer, dtype=dtype).view(shape).zero_()
