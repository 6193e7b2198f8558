"""Settings of the KV page transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """`host` is where a rank listens and what its peers are told, so it must be an address and no wildcard. `tls` is
    handed to UCX as UCX_TLS. Pages travel in slabs of at most `slab_pages`, one layer of them a message; messages pass
    through `staging_mib` of host memory a rank, half of it for each direction. Either end of a transfer that makes no
    progress for `lease_s` gives it up. `corrupt_every` flips one byte of every n-th message sent (0: never): a fire
    drill for the integrity check."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    transport: Literal["ucx"] = "ucx"
    host: str = "127.0.0.1"
    tls: str = "posix,self,tcp"
    slab_pages: int = 32
    staging_mib: int = 64
    lease_s: float = 30.0
    corrupt_every: int = 0

    def __post_init__(self) -> None:
        for key, value in (("host", self.host), ("tls", self.tls)):
            if not value:
                raise ValueError(f"{key} must not be empty")
        if self.slab_pages < 1:
            raise ValueError(f"slab_pages must be at least 1, got {self.slab_pages}")
        if self.staging_mib < 1:
            raise ValueError(f"staging_mib must be at least 1, got {self.staging_mib}")
        if not self.lease_s > 0:
            raise ValueError(f"lease_s must be positive, got {self.lease_s}")
        if self.corrupt_every < 0:
            raise ValueError(f"corrupt_every must not be negative, got {self.corrupt_every}")
