"""The server and its connections, as they see each other."""

from __future__ import annotations

from typing import Literal, Protocol

from slipstream.router.http.cors import CorsPolicy
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.failover.receive_buffer import ReceiveBuffer
from slipstream.router.http.reader import CheckCaller, Request

Welcome = Literal["served", "turned_away", "cut_off"]


class OwnedConnection(Protocol):
    """A connection, as the server sees it."""

    def close_when_idle(self) -> None: ...
    def abort(self) -> None: ...


class ConnectionOwner(Protocol):
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
    def cors(self) -> CorsPolicy | None: ...
    @property
    def failover(self) -> FailoverSession | None: ...
    @property
    def receive_buffer(self) -> ReceiveBuffer: ...
    def joined(self, connection: OwnedConnection) -> Welcome: ...
    async def turn_away(self, request: Request, exchange: Exchange) -> None: ...
    def left(self, connection: OwnedConnection) -> None: ...
