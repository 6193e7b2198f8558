"""The requests that an instance has been given and that have not ended."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.tensor_memory.region_pool import RegionLease
from slipstream.router.tensors.tensor import RegionSlice


class OpenRequests:
    """By their numbers: the leases of inputs that were copied into shared memory for the instance, which end with the
    request, and where clients want outputs."""

    def __init__(self) -> None:
        self._leases: dict[int, Sequence[RegionLease]] = {}
        self._into: dict[int, dict[str, RegionSlice]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, n: int) -> bool:
        return n in self._leases

    def add(self, n: int, leases: Sequence[RegionLease], into: dict[str, RegionSlice] | None) -> None:
        self._leases[n] = leases
        if into:
            self._into[n] = into

    def into(self, n: int) -> dict[str, RegionSlice] | None:
        return self._into.get(n) if self._into else None

    def end(self, n: int) -> None:
        """The request has had its last response, or an error. Idempotent."""
        for lease in self._leases.pop(n, ()):
            lease.release()
        if self._into:
            self._into.pop(n, None)

    def end_all(self) -> None:
        for n in list(self._leases):
            self.end(n)
