"""Why an RPC ends without an answer, as gRPC's status codes."""

from __future__ import annotations

import string
from urllib.parse import quote, unquote

import grpc

from slipstream.router.http.http_error import HttpError
from slipstream.router.tensors.infer_error import InferError, InferErrorCode

GRPC_CODES = {
    InferErrorCode.UNKNOWN: grpc.StatusCode.UNKNOWN,
    InferErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
    InferErrorCode.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    InferErrorCode.INVALID_ARG: grpc.StatusCode.INVALID_ARGUMENT,
    InferErrorCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    InferErrorCode.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    InferErrorCode.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    InferErrorCode.CANCELLED: grpc.StatusCode.CANCELLED,
}
CODES_OF_ACCESS = {  # of HTTP, which access control speaks
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

MAX_DETAILS_BYTES = 7000  # of a status; clients drop an answer whose metadata have over 8 KiB
PLAIN = string.ascii_letters + string.digits + string.punctuation.replace("%", "") + " "  # one byte each on the way


class RpcError(Exception):
    """Ends an RPC with this status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = fitting(message)

    @classmethod
    def of(cls, error: InferError) -> RpcError:
        return cls(GRPC_CODES[error.code], error.message)

    @classmethod
    def of_access(cls, error: HttpError) -> RpcError:
        """Of a caller that was not let in."""
        return cls(CODES_OF_ACCESS.get(error.status, grpc.StatusCode.INVALID_ARGUMENT), error.message)


def fitting(text: str) -> str:
    """As much of a text as the details of a status can carry."""
    if text.isascii() and len(text) * 3 <= MAX_DETAILS_BYTES:
        return text
    encoded = quote(text, safe=PLAIN, errors="backslashreplace")
    if len(encoded) <= MAX_DETAILS_BYTES:
        return unquote(encoded)
    cut = encoded[:MAX_DETAILS_BYTES]
    if "%" in cut[-2:]:
        cut = cut[: cut.rindex("%")]
    return f"{unquote(cut, errors='ignore')}..."
