"""Settings of the KV page transport."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

MAX_SLAB_PAGES = 8192  # the ids of so many fit in one packet between workers of a host
SHM_TRANSPORTS = {"posix", "mm", "sm", "shm"}
COPYING_TRANSPORTS = SHM_TRANSPORTS | {"self", "tcp"}


def only_copies(tls: str) -> bool:
    """Whether with this UCX_TLS the processor moves all bytes, rather than a network card or a GPU, for which the
    memory has to be registered."""
    return COPYING_TRANSPORTS.issuperset(tls.split(","))


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """`transport` auto: workers of one host copy pages straight out of each other's pools if those are in host memory
    (see `pool_memory.py`), all others use UCX. `ucx` and `shared_memory` allow only that one. `nccl` uses
    torch.distributed: NCCL between GPUs, gloo between CPUs. `host` is where a rank listens, and what its peers connect
    to; for a wildcard, a cluster takes the address of the rank's node. `tls` is passed to UCX as UCX_TLS. Pages are
    sent in slabs of at most `slab_pages`, one layer per message. Messages that are staged pass through `staging_mib` of
    host memory per rank, half of it for each direction. Either end of a transfer gives up after `lease_s` without
    progress. A peer that does not answer a call for `peer_timeout_s`, or whose host is silent for that long, counts as
    unreachable. `corrupt_every` spoils every n-th message sent (0: never), to test the integrity check."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    transport: Literal["auto", "shared_memory", "ucx", "nccl"] = "auto"
    host: str = "127.0.0.1"
    tls: str = "posix,self,tcp"
    slab_pages: int = 64
    staging_mib: int = 64
    lease_s: float = 30.0
    peer_timeout_s: float = 5.0
    corrupt_every: int = 0

    def __post_init__(self) -> None:
        for key, value in (("host", self.host), ("tls", self.tls)):
            if not value:
                raise ValueError(f"{key} must not be empty")
        if not 1 <= self.slab_pages <= MAX_SLAB_PAGES:
            raise ValueError(f"slab_pages must be in 1..{MAX_SLAB_PAGES}, got {self.slab_pages}")
        if self.staging_mib < 1:
            raise ValueError(f"staging_mib must be at least 1, got {self.staging_mib}")
        if not 0 < self.lease_s < math.inf:
            raise ValueError(f"lease_s must be positive and finite, got {self.lease_s}")
        if not 1 <= self.peer_timeout_s < math.inf:
            raise ValueError(f"peer_timeout_s must be at least 1 and finite, got {self.peer_timeout_s}")
        if self.corrupt_every < 0:
            raise ValueError(f"corrupt_every must not be negative, got {self.corrupt_every}")
