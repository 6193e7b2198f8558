"""What the requests of one version are answered, from its instances or from the cache."""

from __future__ import annotations

from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.infer.requests.cache_lookup import CacheLookup
from slipstream.router.infer.requests.delivery import delivery_of
from slipstream.router.infer.requests.request_counts import RequestCounts
from slipstream.router.infer.requests.response_shapes import ResponseShapes
from slipstream.router.infer.requests.statistics_recorder import ComputeTimes
from slipstream.router.instances.messages import InstanceResponse
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferResponse
from slipstream.router.tensors.model_spec import ModelSpec


class RequestAnswers:
    """Each request that is expected ends once, and is counted then. What comes for one that has ended goes back to its
    owner."""

    def __init__(self, spec: ModelSpec, counts: RequestCounts, cache: ResponseCache | None) -> None:
        self._spec = spec
        self._counts = counts
        self._cache = CacheLookup.of(spec, cache)
        self._delivery = delivery_of(spec)
        self._shapes = ResponseShapes(spec)

    def expect(self, active: ActiveRequest) -> None:
        """A request was accepted."""
        self._delivery.expect(active)

    def finds(self, active: ActiveRequest) -> bool:
        """Looks for the response in the cache. `send_found` sends it."""
        return self._cache is not None and self._cache.finds(active)

    def send_found(self, now: float) -> None:
        if self._cache is None:
            return
        for active, response, lookup_ns in self._cache.take_found():
            if not active.has_ended:
                self._counts.served_by_cache(active, lookup_ns, now)
                self._delivery.respond(active, response, is_final=True)
            active.release_inputs()

    def respond(
        self,
        active: ActiveRequest,
        response: InstanceResponse,
        *,
        is_final: bool,
        now: float,
        times: ComputeTimes | None = None,
    ) -> None:
        """A response of its instance. `times` None: it came by a response sender."""
        error = response.error
        if error is not None and is_final:
            if not active.has_ended:
                num_responses = active.num_responses + 1
                self._counts.served(active, times, now, num_responses=num_responses, error=error)
                self._delivery.fail(active, error)
            return
        outputs = self._shapes.of(response.outputs)
        spec, request = self._spec, active.request
        if active.record.first_response_s is None:
            active.record.first_response_s = now
        if is_final and not active.has_ended:
            self._counts.served(active, times, now, num_responses=active.num_responses + 1)
        release = response.release
        answer = InferResponse(spec.name, spec.version, request.id, outputs, response.parameters, release, error)
        if self._cache is not None and is_final and error is None and not active.has_ended:
            self._counts.missed_cache(self._cache.keep(active, answer))
        self._delivery.respond(active, answer, is_final=is_final)

    def complete(self, active: ActiveRequest, now: float) -> None:
        """Its model has no more responses."""
        if not active.has_ended:
            self._counts.served(active, None, now, num_responses=active.num_responses)
            self._delivery.complete(active)

    def fail(self, active: ActiveRequest, error: InferError, now: float) -> None:
        if not active.has_ended:
            self._counts.failed(active, error, now)
            self._delivery.fail(active, error)
