"""Why an RPC ends without an answer, as gRPC's status codes."""

from __future__ import annotations

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


class RpcError(Exception):
    """Ends an RPC with this status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @classmethod
    def of(cls, error: InferError) -> RpcError:
        return cls(GRPC_CODES[error.code], error.message)

    @classmethod
    def of_access(cls, error: HttpError) -> RpcError:
        """Of a caller that was not let in."""
        return cls(CODES_OF_ACCESS.get(error.status, grpc.StatusCode.INVALID_ARGUMENT), error.message)
