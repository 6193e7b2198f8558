"""A rank's place in its tensor-parallel group, and what the ranks do together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from slipstream.workers.models.json_keys import ModelError


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Rank `rank` of `size`. A group of one needs no process group; all ranks must make the same calls in order."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank must be in 0 .. {self.size - 1}, got {self.rank}")
        if self.size > 1 and self.group is None:
            raise ValueError(f"a tensor-parallel group of {self.size} needs a process group")

    def shard(self, count: int, what: str) -> slice:
        """This rank's share of `count` things. Raises ModelError if they cannot be dealt out evenly."""
        if count % self.size:
            raise ModelError(f"tensor parallel degree {self.size} does not divide {what} = {count}")
        share = count // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def padded_share(self, count: int) -> int:
        """The largest share when `count` things are dealt out in equal runs, the last ones shorter or empty."""
        return -(-count // self.size)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def least(self, value: int, device: torch.device) -> int:
        """The smallest of all ranks' values. `device` is where the group's tensors live."""
        if self.size == 1:
            return value
        values = torch.tensor([value], device=device)
        dist.all_reduce(values, dist.ReduceOp.MIN, group=self.group)
        return int(values[0])

    def gather_columns(self, x: Tensor) -> Tensor | None:
        """[rows, columns] of each rank side by side, [rows, size * columns], on rank 0; None on the others."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(x.contiguous(), parts, group=self.group, group_dst=0)
        return None if parts is None else torch.cat(parts, dim=-1)
