"""The memory that the tensors of one request lie in."""

from __future__ import annotations

from slipstream.router.tensor_memory.region_pool import INLINE_BYTES, RegionLease, RegionPool, RegionPoolFull
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.tensor import TensorData


class TensorPlaces:
    """Small tensors stay as they are, large ones go into shared memory. `release` gives that back; it is what
    `InferRequest.release` is set to."""

    __slots__ = ("_leases", "_pool")

    def __init__(self, pool: RegionPool | None) -> None:
        """Without a pool all tensors stay as they are."""
        self._pool = pool
        self._leases: list[RegionLease] = []

    def keep(self, lease: RegionLease) -> None:
        """Takes over a lease that tensors of the request lie in."""
        self._leases.append(lease)

    def keeps(self, lease: RegionLease) -> bool:
        return lease in self._leases

    @property
    def holds_memory(self) -> bool:
        return bool(self._leases)

    def put(self, data: bytes | memoryview) -> TensorData:
        """Where `data` lies for the request. Raises UNAVAILABLE if there is no memory for it."""
        num_bytes = len(data)
        if num_bytes <= INLINE_BYTES or self._pool is None:
            return data
        lease = self.allocate(num_bytes)
        lease.view[:num_bytes] = data
        return lease.slice

    def allocate(self, num_bytes: int) -> RegionLease:
        assert self._pool is not None
        try:
            lease = self._pool.allocate(num_bytes)
        except RegionPoolFull as error:
            raise InferError(str(error), InferErrorCode.UNAVAILABLE) from error
        self._leases.append(lease)
        return lease

    def release(self) -> None:
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()
