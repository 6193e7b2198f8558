"""Refusals: an HTTP status and, where an API has no form of its own, OpenAI's error object."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from slipstream.router.protocol.generation import GenerationError


class HttpError(Exception):
    """An answer other than success. `param` is the dotted name of the field at fault, `code` a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> bytes:
        """The JSON object `{"error": {"message", "type", "param", "code"}}`."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


# The body of an error, for the request with this id.
ErrorForm = Callable[[HttpError, str], bytes]


# The form of errors at a path.
ErrorFormOf = Callable[[str], ErrorForm]


def openai_error(error: HttpError, request_id: str) -> bytes:
    return error.body()


def openai_form(path: str) -> ErrorForm:
    return openai_error


class RequestError(HttpError):
    """A request that made sense was refused, or failed. `error` is the reason as its record has it."""

    def __init__(
        self,
        status: int,
        message: str,
        error: GenerationError,
        *,
        kind: str,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(status, message, kind=kind, param=param, code=code, headers=headers)
        self.error = error


def internal_error() -> HttpError:
    """For a bug. What it was is in the log, and not the client's business."""
    return HttpError(500, "Internal error.", kind="server_error", code="internal_error")


def router_restarted(message: str) -> HttpError:
    """For a request that outlived a router and is not continued."""
    return HttpError(503, message, kind="server_error", code="router_restarted", headers=(("retry-after", "1"),))
