"""Translates the failure of a generation to an HTTP status and OpenAI's error object."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.router.http.http_error import RequestError
from slipstream.router.protocol.generation import ErrorKind, GenerationError, GenerationFinish


@dataclass(frozen=True, slots=True)
class FailureResponse:
    """How a kind of failure is reported. `kind` is OpenAI's `type`, which names the side at fault."""

    status: int
    kind: str
    code: str


VERDICTS: dict[ErrorKind, FailureResponse] = {
    "invalid_request": FailureResponse(400, "invalid_request_error", "invalid_value"),
    "prompt_too_long": FailureResponse(400, "invalid_request_error", "context_length_exceeded"),
    "limit_exceeded": FailureResponse(429, "rate_limit_error", "rate_limit_exceeded"),
    "not_ready": FailureResponse(503, "server_error", "not_ready"),
    "queue_full": FailureResponse(503, "server_error", "overloaded"),
    "tenant_queue_full": FailureResponse(429, "rate_limit_error", "tenant_queue_full"),
    "deadline_unreachable": FailureResponse(503, "server_error", "deadline_unreachable"),
    "queue_timeout": FailureResponse(503, "server_error", "queue_timeout"),
    "request_timeout": FailureResponse(504, "server_error", "request_timeout"),
    "worker_failed": FailureResponse(500, "server_error", "worker_failed"),
    "logits_processor_failed": FailureResponse(500, "server_error", "logits_processor_failed"),
    "shutting_down": FailureResponse(503, "server_error", "shutting_down"),
    "model_not_found": FailureResponse(404, "invalid_request_error", "model_not_found"),
}


class GenerationFailed(Exception):  # noqa: N818 - an event of the request's life, not a bug
    """A request was admitted but failed before its normal end."""

    def __init__(self, finish: GenerationFinish) -> None:
        error = finish.error or GenerationError("worker_failed", f"the generation ended with {finish.reason!r}")
        super().__init__(error.message)
        self.error = error


def as_http_error(error: GenerationError, prompt_param: str) -> RequestError:
    """The HTTP error for a failure. `prompt_param` is the name of the request's field that holds the prompt."""
    verdict = VERDICTS[error.kind]
    headers: tuple[tuple[str, str], ...] = ()
    if error.retry_after_s is not None:
        headers = (("retry-after", str(math.ceil(error.retry_after_s))),)
    return RequestError(
        verdict.status,
        f"{error.message[:1].upper()}{error.message[1:]}.",
        error,
        kind=verdict.kind,
        param=prompt_param if error.kind == "prompt_too_long" else None,
        code=verdict.code,
        headers=headers,
    )
