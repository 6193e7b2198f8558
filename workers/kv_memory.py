"""Host memory for a rank's KV pool that workers on the same host may look into."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.kv_transfer.pool_memory import PoolMemory


class KvMemory:
    """Made when the pool's size is known, then in `pool`; that stays None where the pool is in device memory."""

    def __init__(self) -> None:
        self.pool: PoolMemory | None = None

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The pool as a tensor. Written, not only mapped: the first requests should not pay for page faults."""
        self.pool = PoolMemory(math.prod(shape) * dtype.itemsize)
        return torch.frombuffer(self.pool.buffer, dtype=dtype).view(shape).zero_()
