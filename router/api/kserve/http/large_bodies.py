"""Large bodies of tensor requests arrive in shared memory, where the instances find them."""

from __future__ import annotations

from slipstream.router.api.kserve.http.bodies.infer_answer import HEAD_LENGTH
from slipstream.router.api.kserve.http.bodies.infer_body import json_too_large, raw_too_large
from slipstream.router.api.kserve.http.kserve_error import is_of_kserve
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.tensor_memory.region_pool import RegionLease, RegionPool, RegionPoolFull

RAW_HEAD_LENGTH = HEAD_LENGTH.encode()  # as a request has it
INFER = "/infer"  # the end of the paths whose bodies are bounded by the memory only


class LargeBodies:
    """The `BodyPlaces` of the tensor API. Bodies that are one piece of JSON, or one raw input, have at most
    `max_input_bytes`."""

    def __init__(self, pool: RegionPool, max_input_bytes: int) -> None:
        self._pool = pool
        self._max_input_bytes = max_input_bytes

    def chunked_limit_bytes(self, path: str) -> int | None:
        return self._max_input_bytes if is_of_kserve(path) else None

    def place_for(self, path: str, num_bytes: int, headers: list[tuple[bytes, bytes]]) -> RegionLease | None:
        """Raises HttpError: 413 for a body that is too large, 503 where there is no room now."""
        if not is_of_kserve(path):
            return None
        head_length = next((value for name, value in headers if name == RAW_HEAD_LENGTH), b"")
        head_bytes = int(head_length) if head_length.isdigit() and len(head_length) < 10 else 0
        if num_bytes > self._max_input_bytes and not (path.endswith(INFER) and head_bytes):
            is_raw = path.endswith(INFER) and bool(head_length)
            too_large = raw_too_large if is_raw else json_too_large
            text = too_large(num_bytes, self._max_input_bytes).message
            raise HttpError(413, text, code="body_too_large")
        if num_bytes > self._pool.limit_bytes:
            text = f"The request body is larger than {self._pool.limit_bytes} bytes, the shared memory for tensors."
            raise HttpError(413, text, code="body_too_large")
        try:
            return self._pool.promise(num_bytes, head_bytes if head_bytes <= num_bytes else 0)
        except RegionPoolFull as error:
            raise HttpError(503, str(error), code="memory_full", headers=(("retry-after", "1"),)) from error


def body_of(request: Request) -> tuple[memoryview, RegionLease | None]:
    """The body, and the lease that it lies in, which the caller releases from now on."""
    lease = request.take_large_body()
    if lease is None:
        return memoryview(request.body), None
    assert isinstance(lease, RegionLease)
    return lease.view, lease
