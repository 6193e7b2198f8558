"""A rank's place in its tensor-parallel group, and what the ranks do together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from slipstream.workers.models.sharding.rank_share import Rank


@dataclass(frozen=True, slots=True)
class TensorParallel(Rank):
    """Rank `rank` of `size`. A group of one needs no process group; all ranks must make the same calls in order."""

    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        Rank.__post_init__(self)  # `super()` without arguments does not work in a class with slots before Python 3.14
        if self.size > 1 and self.group is None:
            raise ValueError(f"a tensor-parallel group of {self.size} needs a process group")

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

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """The tensors of all ranks, which have one shape, side by side in dimension `dim`, on each rank."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim=dim)
