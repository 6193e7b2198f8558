"""The errors of the API for models."""

from __future__ import annotations


class TritonModelException(Exception):  # noqa: N818 - models catch it by this name
    """What the API raises when it is used wrongly, or when the server refuses something."""


# Models find it under this name in the texts of errors.
TritonModelException.__module__ = "c_python_backend_utils"


class TritonError:
    """Why a request failed, as a model says it in its response. `code` is one of Triton's error codes."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError(f"TritonError(): message must be a str, got {type(message).__name__}: {message!r}")
        if code not in CODE_NAMES:
            raise TypeError(f"TritonError(): code must be one of TritonError's codes, got {code!r}")
        self._message = message
        self._code = code

    def code(self) -> int:
        return self._code

    def message(self) -> str:
        return self._message


CODE_NAMES = {
    TritonError.UNKNOWN: "UNKNOWN",
    TritonError.INTERNAL: "INTERNAL",
    TritonError.NOT_FOUND: "NOT_FOUND",
    TritonError.INVALID_ARG: "INVALID_ARG",
    TritonError.UNAVAILABLE: "UNAVAILABLE",
    TritonError.UNSUPPORTED: "UNSUPPORTED",
    TritonError.ALREADY_EXISTS: "ALREADY_EXISTS",
    TritonError.CANCELLED: "CANCELLED",
}
CODES = {name: code for code, name in CODE_NAMES.items()}
