"""The use of the response cache by one version of a model."""

from __future__ import annotations

import time

from slipstream.router.batching.responses.response_cache import ResponseCache, cache_key, uses_cache
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.tensors.infer_request import InferResponse
from slipstream.router.tensors.model_spec import ModelSpec


class CacheLookup:
    """Responses that were found wait here until they are delivered, which no request may be within its submission."""

    def __init__(self, spec: ModelSpec, cache: ResponseCache) -> None:
        self._spec = spec
        self._cache = cache
        self._found: list[tuple[ActiveRequest, InferResponse, int]] = []

    @classmethod
    def of(cls, spec: ModelSpec, cache: ResponseCache | None) -> CacheLookup | None:
        """None if the model does not use it."""
        return cls(spec, cache) if cache is not None and uses_cache(spec) else None

    def finds(self, active: ActiveRequest) -> bool:
        """Looks for the response to a request."""
        begun_ns = time.monotonic_ns()
        active.cache_key = cache_key(self._spec, active.request)
        found = self._cache.lookup(active.cache_key)
        active.cache_ns = time.monotonic_ns() - begun_ns
        if found is None:
            return False
        self._found.append((active, found.response_to(active.request, self._spec.version), active.cache_ns))
        return True

    def take_found(self) -> list[tuple[ActiveRequest, InferResponse, int]]:
        """Requests, their responses, and the nanoseconds of the look-up."""
        found, self._found = self._found, []
        return found

    def keep(self, active: ActiveRequest, response: InferResponse) -> int:
        """Returns the nanoseconds that the look-up and this took."""
        begun_ns = time.monotonic_ns()
        self._cache.insert(active.cache_key, self._spec, response)
        return active.cache_ns + time.monotonic_ns() - begun_ns
