"""The errors of the API for models."""

from __future__ import annotations

from enum import IntEnum

from slipstream.workers.backends.python.model_api.tensors.text import text_of


class TritonModelException(Exception):  # noqa: N818 - models catch it by this name
    """What the API raises when it is used wrongly, or when the server refuses something."""


# It stands under this name in the texts of errors.
TritonModelException.__module__ = "c_python_backend_utils"


class ErrorCode(IntEnum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    """Why a request failed, as a model says it in its response. `code` is one of Triton's error codes."""

    __module__ = "c_python_backend_utils"
    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: int = ErrorCode.INTERNAL) -> None:
        self._message = text_of(message, "TritonError(): message")
        self._code = ErrorCode(code)

    def code(self) -> ErrorCode:
        return self._code

    def message(self) -> str:
        return self._message
