"""Errors as Triton's HTTP server words them: `{"error": text}`."""

from __future__ import annotations

import orjson

from slipstream.router.http.http_error import HttpError
from slipstream.router.tensors.infer_error import InferError

BEGIN = "/v2"  # of the paths of this API
OF_OTHERS = frozenset({"/v2/rerank"})  # Cohere's
NOT_FOUND, NOT_ALLOWED = "Not Found", "Method Not Allowed"


def is_of_kserve(path: str) -> bool:
    """Whether a path is one of this API, or may be meant as one."""
    return path.startswith(BEGIN) and path[len(BEGIN) : len(BEGIN) + 1] in ("", "/") and path not in OF_OTHERS


def kserve_error(error: HttpError, request_id: str) -> bytes:
    """The body of an error."""
    return orjson.dumps({"error": error.message})


def http_error(error: InferError) -> HttpError:
    return HttpError(error.code.http_status, error.message, code=error.code.value.lower())


def not_found() -> HttpError:
    return HttpError(404, NOT_FOUND, code="not_found")


def not_allowed() -> HttpError:
    return HttpError(405, NOT_ALLOWED, code="method_not_allowed")
