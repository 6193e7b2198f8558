"""How responses go to their receivers: at once, or in the order of the requests (`preserve_ordering`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from slipstream.router.batching.responses.response_order import ResponseOrder
from slipstream.router.batching.scheduler_choice import preserves_ordering
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferResponse
from slipstream.router.tensors.model_spec import ModelSpec

Answer = tuple[InferResponse | None, bool]  # None: no response, only the end; whether it is final


class Delivery(Protocol):
    def expect(self, active: ActiveRequest) -> None:
        """A request was accepted."""

    def respond(self, active: ActiveRequest, response: InferResponse, *, is_final: bool) -> None: ...
    def complete(self, active: ActiveRequest) -> None: ...
    def fail(self, active: ActiveRequest, error: InferError) -> None: ...


class DirectDelivery:
    """At once."""

    def expect(self, active: ActiveRequest) -> None:
        """There is nothing to remember."""

    def respond(self, active: ActiveRequest, response: InferResponse, *, is_final: bool) -> None:
        active.respond(response, is_final=is_final)

    def complete(self, active: ActiveRequest) -> None:
        active.complete()

    def fail(self, active: ActiveRequest, error: InferError) -> None:
        active.fail(error)


class OrderedDelivery:
    """A response waits until all requests before its own have ended. A failure does not wait: it is an end of its own,
    without a response that could come too early."""

    def __init__(self) -> None:
        self._order: ResponseOrder[ActiveRequest, Answer] = ResponseOrder()

    def expect(self, active: ActiveRequest) -> None:
        self._order.expect(active, active.request.tenant)

    def respond(self, active: ActiveRequest, response: InferResponse, *, is_final: bool) -> None:
        if active.has_ended:
            active.respond(response, is_final=is_final)  # which gives its memory back
            return
        answer = (response, is_final)
        self._send(self._order.respond(active, answer, is_final=is_final, tenant=active.request.tenant))

    def complete(self, active: ActiveRequest) -> None:
        self._send(self._order.respond(active, (None, True), is_final=True, tenant=active.request.tenant))

    def fail(self, active: ActiveRequest, error: InferError) -> None:
        leaving = self._order.drop(active, active.request.tenant)
        active.fail(error)
        self._send(leaving)

    def _send(self, leaving: Iterable[tuple[ActiveRequest, Answer]]) -> None:
        for active, (response, is_final) in leaving:
            if response is not None:
                active.respond(response, is_final=is_final)
            else:
                active.complete()


def delivery_of(spec: ModelSpec) -> Delivery:
    return OrderedDelivery() if preserves_ordering(spec) else DirectDelivery()
