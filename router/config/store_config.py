"""Settings of the store: what the APIs keep between requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

GIB = 1 << 30
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where responses, conversations, files and batches are kept, and how much of them. `directory` None: in the
    cluster's state directory (`store_folder`); a router without a cluster then keeps nothing. A relative path is
    relative to the deployment's file. Over `max_gib` in all, or `max_tenant_gib` of a tenant, the oldest objects leave.
    With `fsync` what was confirmed survives a loss of power, without it the end of every process."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    enabled: bool = True
    directory: str | None = None
    max_gib: float = 8.0
    max_tenant_gib: float | None = None  # None: half of max_gib for each tenant of a key
    max_age_s: float = 30 * DAY_S  # how long OpenAI keeps responses
    fsync: bool = False

    def __post_init__(self) -> None:
        if self.directory == "":
            raise ValueError("directory must not be empty; leave it out for that of the cluster")
        for key in ("max_gib", "max_age_s"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be over 0 and finite, got {getattr(self, key)}")
        if self.max_tenant_gib is not None and not 0 < self.max_tenant_gib <= self.max_gib:
            raise ValueError(
                f"max_tenant_gib must be null, or over 0 and at most max_gib ({self.max_gib}), "
                f"got {self.max_tenant_gib}"
            )

    @property
    def max_bytes(self) -> int:
        return int(self.max_gib * GIB)

    def max_bytes_of(self, owner: str) -> int:
        """The most that an owner may have. Without keys all objects have the owner "", who may have everything."""
        if self.max_tenant_gib is not None:
            return int(self.max_tenant_gib * GIB)
        return self.max_bytes // 2 if owner else self.max_bytes
