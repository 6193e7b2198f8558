"""The admin API of a cluster as an ASGI application, with OpenAPI docs at /docs.

It is imported only when it is served: FastAPI takes 0.2 s to import, for which no start should have to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import HTTPConnection

from slipstream import __version__
from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.body_limit import BodyLimit
from slipstream.cluster.admin_api.driver_parts import DriverParts
from slipstream.cluster.admin_api.fleet_routes import fleet_routes
from slipstream.cluster.fleet.fleet_port import FleetError, FleetErrorKind

STATUS_OF: dict[FleetErrorKind, int] = {"unknown": 404, "conflict": 409, "invalid": 400, "unavailable": 503}
DESCRIPTION = (
    "Shows and resizes a running cluster. Every call needs `Authorization: Bearer TOKEN`. "
    "A call that changes something takes `?reason=TEXT`, which stands in the history."
)
HARMLESS = ("GET", "HEAD", "OPTIONS")  # methods that change nothing, for which a token with the role `read` is enough


class TokenBearer(HTTPBearer):
    """Admits callers that present a token; to changes, only those whose token has the role `operator`."""

    def __init__(self, tokens: AdminTokens) -> None:
        super().__init__(
            auto_error=False,
            description="The token: in the state file, in admin_api.token_file, or one of admin_api.tokens_file.",
        )
        self._tokens = tokens

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials:
        shown = await super().__call__(request)
        token = self._tokens.token_of(shown.credentials) if shown is not None else None
        if shown is None or token is None:
            reason = "the token is missing" if shown is None else "this is not the token of this cluster"
            raise HTTPException(401, reason, headers={"WWW-Authenticate": "Bearer"})
        if not token.may_change and request.scope["method"] not in HARMLESS:
            raise HTTPException(403, f"the token {token.name} has the role read, which may change nothing")
        request.state.caller = token.name
        return shown


def build_app(parts: DriverParts, routers: Sequence[APIRouter] = ()) -> FastAPI:
    """The application. `routers` are mounted beside the fleet's own; their calls need the token, too."""
    app = FastAPIOffline(  # a browser inside a cluster may reach no other host for the page's scripts
        title="Slipstream admin API",
        version=__version__,
        description=DESCRIPTION,
        redoc_url=None,
        responses={
            401: {"description": "No token, or the wrong one."},
            403: {"description": "The token may look, and change nothing."},
        },
    )
    app.add_middleware(BodyLimit)
    app.add_exception_handler(FleetError, _fleet_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _refused)
    for router in (fleet_routes(parts), *routers):
        app.include_router(router, dependencies=[Depends(TokenBearer(parts.tokens))])
    return app


def _error(
    status: int, message: str, param: str | None, code: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error in the form of the OpenAI API, which all errors here have."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers)


async def _fleet_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FleetError)
    return _error(STATUS_OF[error.kind], error.reason, error.field, error.kind)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """The answer to an invalid request. It describes all mistakes, and names the field of the first one. A body that is
    not JSON has no field."""
    assert isinstance(error, RequestValidationError)
    found = [("body" if e["type"] == "json_invalid" else _field(e["loc"]), _reason(e)) for e in error.errors()]
    return _error(400, "; ".join(f"{field}: {reason}" for field, reason in found), found[0][0], "invalid")


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    codes = {401: "unauthorized", 403: "read_only", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
    headers = dict(error.headers) if error.headers else None
    return _error(error.status_code, str(error.detail), None, codes.get(error.status_code, "error"), headers)


def _field(loc: Sequence[int | str]) -> str:
    """The name of a field, without the part of the request (`body`, `path`, `query`) that it is in."""
    return ".".join(str(part) for part in loc[1:]) or str(loc[0])


def _reason(error: dict[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return f"not JSON: {error['ctx']['error']}"
    reason = str(error["msg"]).removeprefix("Input ").replace("should be", "must be", 1)
    shown = "" if error["type"] == "missing" else f", got {error['input']!r}"[:100]
    return reason[:1].lower() + reason[1:] + shown
