"""The server and its connections, as they see each other."""

from __future__ import annotations

from typing import Literal, Protocol

from slipstream.router.http.cors import CorsPolicy
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.http_error import ErrorFormOf
from slipstream.router.http.large_body import BodyPlaces
from slipstream.router.http.observer import C
from slipstream.router.http.reader import CheckCaller, Request

Admittance = Literal["served", "turned_away", "cut_off"]


class OwnedConnection(Protocol):
    """A connection, as the server sees it."""

    def close_when_idle(self) -> None: ...
    def abort(self) -> None: ...


class ConnectionOwner(Protocol[C]):
    """The server, as its connections see it: each has `joined` once and `left` once."""

    @property
    def date(self) -> str: ...
    @property
    def leaving(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def check_caller(self) -> CheckCaller | None: ...
    @property
    def error_form_of(self) -> ErrorFormOf: ...
    @property
    def cors(self) -> CorsPolicy | None: ...
    @property
    def body_places(self) -> BodyPlaces | None: ...
    def joined(self, connection: OwnedConnection) -> Admittance: ...
    async def turn_away(self, request: Request, exchange: Exchange[C]) -> None: ...
    def left(self, connection: OwnedConnection) -> None: ...
