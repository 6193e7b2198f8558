"""Why a generation failed, in the terms of tensor requests."""

from __future__ import annotations

from slipstream.router.api.generation.answer.failures import GenerationFailed, as_http_error
from slipstream.router.http.http_error import HttpError
from slipstream.router.protocol.generation import AdmissionError
from slipstream.router.tensors.infer_error import FailureReason, InferError, InferErrorCode

CODES = {
    404: InferErrorCode.NOT_FOUND,
    429: InferErrorCode.UNAVAILABLE,
    501: InferErrorCode.UNSUPPORTED,
    503: InferErrorCode.UNAVAILABLE,
    504: InferErrorCode.UNAVAILABLE,
}
REJECTIONS = frozenset({429, 503, 504})
GENERATION_ERRORS = (HttpError, AdmissionError, GenerationFailed, InferError)


def infer_error(error: Exception) -> InferError:
    """Of one of GENERATION_ERRORS."""
    if isinstance(error, InferError):
        return error
    if isinstance(error, AdmissionError | GenerationFailed):
        error = as_http_error(error.error, "")
    assert isinstance(error, HttpError)
    code = InferErrorCode.INTERNAL if error.status >= 500 else InferErrorCode.INVALID_ARG
    reason = FailureReason.BACKEND if error.status >= 500 else FailureReason.OTHER
    if error.status in REJECTIONS:
        reason = FailureReason.REJECTED
    return InferError(error.message, CODES.get(error.status, code), reason)
