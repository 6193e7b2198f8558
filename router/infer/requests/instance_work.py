"""What the instances of a version have to do at the moment, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.router.batching.scheduler import RequestBatch
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.instances.instance_messages import known_code
from slipstream.router.instances.messages import InstanceResponse
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode


@dataclass(slots=True)
class RunningBatch:
    """`numbers` are those of its places, with or without a request."""

    number: int
    batch: RequestBatch
    numbers: list[int]
    started_s: float


@dataclass(slots=True)
class InstanceWork:
    """What an instance has: at most one execution, and requests that await further responses. One that `is_leaving`
    gets no requests but those of the sequences that it has."""

    name: str
    key: str = ""
    running: RunningBatch | None = None
    open: dict[int, ActiveRequest] = field(default_factory=dict)
    is_leaving: bool = False

    def running_s(self, now: float) -> float:
        """How long it has been executing."""
        return now - self.running.started_s if self.running is not None else 0.0


def failure_of(instance: str, text: str, code: str | None) -> InferError:
    """`code` None: the text is what Python code has raised."""
    if code is not None:
        return InferError(text, known_code(code), FailureReason.BACKEND)
    text = f"Failed to process the request(s) for model '{instance}', message: {text}"
    return InferError(text, InferErrorCode.INTERNAL, FailureReason.BACKEND)


def release_all(responses: Sequence[InstanceResponse | None]) -> None:
    """Gives the memory of responses back that no request waits for."""
    for response in responses:
        if response is not None and response.release is not None:
            response.release()
