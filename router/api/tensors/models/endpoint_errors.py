"""Failures of tensor requests as OpenAI's errors."""

from __future__ import annotations

from slipstream.router.http.http_error import HttpError
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode

RETRY = (("retry-after", "1"),)


def endpoint_error(error: InferError, endpoint: str) -> HttpError:
    """What the client of an endpoint gets when its model's request has failed."""
    text = f"{endpoint}: {error.message}"
    if error.code == InferErrorCode.UNAVAILABLE or error.reason == FailureReason.REJECTED:
        return HttpError(503, text, kind="server_error", code="model_not_ready", headers=RETRY)
    if error.code == InferErrorCode.NOT_FOUND:
        return HttpError(503, text, kind="server_error", code="model_not_ready", headers=RETRY)
    if error.code == InferErrorCode.INVALID_ARG:
        return HttpError(400, text, code="invalid_value")
    return HttpError(500, text, kind="server_error", code="model_failed")


def misconfigured(endpoint: str, problem: str) -> HttpError:
    """An endpoint whose configuration does not fit its model: a fault of the server."""
    return HttpError(500, f"{endpoint}: {problem}.", kind="server_error", code="endpoint_misconfigured")


def invalid(param: str, problem: str) -> HttpError:
    """A field of the request is at fault."""
    return HttpError(400, f"'{param}' {problem}.", param=param, code="invalid_value")
