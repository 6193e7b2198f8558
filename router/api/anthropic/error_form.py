"""Errors as Anthropic's API words them: https://platform.claude.com/docs/en/api/errors."""

from __future__ import annotations

from typing import Any

import orjson

from slipstream.router.http.http_error import ErrorForm, HttpError, RequestError, openai_error
from slipstream.router.http.reader import Request
from slipstream.router.protocol.generation import ErrorKind

OVERLOADED = 529
BEGIN = "/v1/messages"  # of the paths of this API
VERSION_HEADER = b"anthropic-version"
MODELS = "/v1/models"
TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
# More requests than the cluster can take; what else is 503 here is an `api_error` there.
OVERLOADS: frozenset[ErrorKind] = frozenset({"queue_full", "queue_timeout", "deadline_unreachable"})
OVERLOADED_CODE = "overloaded"
NO_THREADS = "thread_unsupported_request"  # behind this code, clients send the whole conversation again


def is_of_messages(path: str) -> bool:
    """Whether errors at this path have this form."""
    return path.startswith(BEGIN) and path[len(BEGIN) : len(BEGIN) + 1] in ("", "/")


def asks_anthropic(request: Request) -> bool:
    """Whether a request is answered in Anthropic's form: by its path, or, for models, by what its client speaks."""
    return is_of_messages(request.path) or (VERSION_HEADER in request.headers and request.path.startswith(MODELS))


def error_form(path: str) -> ErrorForm:
    """That of the API which a path belongs to."""
    return anthropic_error if is_of_messages(path) else openai_error


def anthropic_error(error: HttpError, request_id: str) -> bytes:
    """The body of an error. It names the field at fault in its message, which is the only place for it."""
    return orjson.dumps(error_object(error, request_id))


def error_object(error: HttpError, request_id: str) -> dict[str, Any]:
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    inner: dict[str, Any] = {"type": type_of(error), "message": message}
    if error.code is not None:
        inner["details"] = {"error_code": error.code}
    return {"type": "error", "error": inner, "request_id": request_id}


def no_threads() -> HttpError:
    """For a request whose conversation this server is to hold."""
    message = "'thread' is not supported: send the whole conversation."
    return HttpError(400, message, param="thread", code=NO_THREADS)


def type_of(error: HttpError) -> str:
    if is_overload(error):
        return TYPES[OVERLOADED]
    return TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")


def is_overload(error: HttpError) -> bool:
    is_kind = isinstance(error, RequestError) and error.error.kind in OVERLOADS
    return is_kind or error.status == OVERLOADED or (error.status == 503 and error.code == OVERLOADED_CODE)
