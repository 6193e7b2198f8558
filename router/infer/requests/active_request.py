"""A tensor request from its acceptance to its one end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from slipstream.router.batching.scheduler import QueuedRequest
from slipstream.router.infer.requests.request_record import InferRecord
from slipstream.router.tensors.infer_error import InferError, InferErrorCode, cancelled_by_client
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, ResponseReceiver

log = logging.getLogger(__name__)


class Canceller(Protocol):
    """What serves a request."""

    def cancel(self, active: ActiveRequest) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class ActiveRequest(QueuedRequest):
    """`n` is its number at `instance`, which executes it or did so last. A request that `has_ended` may still be
    with an instance, which does not know: its inputs stay until that gives it back."""

    receiver: ResponseReceiver
    canceller: Canceller
    record: InferRecord
    n: int = 0
    instance: str = ""
    started_s: float = 0.0
    num_responses: int = 0
    has_ended: bool = False
    cache_key: bytes = b""
    cache_ns: int = 0  # of the look-up that missed
    cancelled_because: InferError | None = None

    @property
    def cancellation(self) -> InferError:
        """How it ends if it is cancelled."""
        return self.cancelled_because or cancelled_by_client()

    def cancel(self, because: InferError | None = None) -> None:
        """Submission.cancel."""
        self.cancelled_because = because
        self.canceller.cancel(self)

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        """Gives a response on, or its memory back if the request has ended."""
        if self.has_ended:
            if response.release is not None:
                response.release()
            return
        self.num_responses += 1
        self.has_ended = is_final
        try:
            self.receiver.respond(response, is_final=is_final)
        except Exception as error:  # which must not take the other requests of the batch with it
            log.exception("a response of model %s cannot be given on", self.request.model)
            self.has_ended = True
            self.receiver.fail(InferError(f"the response cannot be given on: {error}", InferErrorCode.INTERNAL))

    def complete(self) -> bool:
        """Ends it without a further response. Returns whether it had not ended."""
        if self.has_ended:
            return False
        self.has_ended = True
        self.receiver.complete()
        return True

    def fail(self, error: InferError) -> bool:
        """Returns whether it had not ended."""
        if self.has_ended:
            return False
        self.has_ended = True
        self.receiver.fail(error)
        return True

    def release_inputs(self) -> None:
        """Gives the memory of the inputs back: nothing reads them any more."""
        release_inputs(self.request)


def release_inputs(request: InferRequest) -> None:
    """Gives the memory of a request's inputs back. Idempotent."""
    release = request.release
    if release is not None:
        request.release = None
        release()
