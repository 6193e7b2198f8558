"""The ranks of a tensor-parallel group as one: where they meet, and what rank 0 tells the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where rank 0 waits for the other ranks: torch.distributed's store and the control link. `secret` admits them."""

    host: str
    distributed_port: int
    control_port: int
    secret: str
