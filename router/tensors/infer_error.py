"""Why a tensor request failed, in the terms of KServe v2 and Triton."""

from __future__ import annotations

from enum import Enum


class InferErrorCode(Enum):
    """Triton's error codes. Each has a status in HTTP and one in gRPC (`TRITONSERVER_Error_Code`)."""

    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CANCELLED = "CANCELLED"

    @property
    def http_status(self) -> int:
        """What Triton's HTTP server answers: 400 for all that are not listed."""
        return HTTP_STATUS.get(self, 400)


HTTP_STATUS = {
    InferErrorCode.INTERNAL: 500,
    InferErrorCode.NOT_FOUND: 404,
    InferErrorCode.UNAVAILABLE: 503,
    InferErrorCode.UNSUPPORTED: 501,
}


class FailureReason(Enum):
    """What a failed request is counted as in `nv_inference_request_failure{reason}`."""

    REJECTED = "REJECTED"  # by a queue: full, or too late
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class InferError(Exception):
    """The end of a tensor request, or the refusal of another call of the tensor API. What is no Unicode in the message,
    a lone surrogate from the name of a file, is written out: no answer can carry it."""

    def __init__(
        self,
        message: str,
        code: InferErrorCode = InferErrorCode.INVALID_ARG,
        reason: FailureReason = FailureReason.OTHER,
    ) -> None:
        if not message.isascii():
            message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason


def cancelled_by_client() -> InferError:
    """The end of a request that its client does not want any more."""
    return InferError("the request was cancelled by its client", InferErrorCode.CANCELLED, FailureReason.CANCELED)
