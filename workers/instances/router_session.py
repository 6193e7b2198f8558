"""One connection of an instance host to the router."""

from __future__ import annotations

import asyncio
from typing import Protocol

from slipstream.router.instances.frames.frame_connection import FrameConnection
from slipstream.router.instances.frames.frame_reader import FrameError, Json, Payload
from slipstream.router.instances.host_messages import HostWelcome, host_welcome, start_instance
from slipstream.router.instances.messages import StartInstance
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.workers.instances.host_config import RouterAddress

MAX_FRAME_BYTES = 16 << 20
CONNECT_TIMEOUT_S = 3.0  # to a machine that does not answer; TCP itself would try for minutes


class HostRefused(RuntimeError):  # noqa: N818 - names the condition
    """The router does not accept this host: its token or its protocol is wrong."""


class Commanded(Protocol):
    """What the router commands: the host."""

    def welcomed(self, welcome: HostWelcome) -> None: ...

    def start(self, start: StartInstance, secret: str) -> None: ...

    def stop_instance(self, launch: str, grace_s: float) -> None: ...


class RouterSession:
    """From the connection until its loss. `ended` has a result then, or HostRefused."""

    def __init__(self, connection: FrameConnection, host: Commanded) -> None:
        self.connection = connection
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_welcome = False
        self._host = host

    def received(self, head: Json, payload: Payload) -> None:
        """Raises FrameError for what a router does not say."""
        kind = head["type"]
        if kind == "refused":
            self._end(HostRefused(f"the router refuses this instance host: {head.get('reason')}"))
        elif kind == "host_welcome":
            self.is_welcome = True
            self._host.welcomed(host_welcome(head))
        elif not self.is_welcome:
            raise FrameError(f"the router says {kind!r} before its welcome")
        else:
            self._command(head)

    def lost(self, reason: str) -> None:
        self._end(reason)

    def _command(self, head: Json) -> None:
        try:
            match head["type"]:
                case "start":
                    self._host.start(start_instance(head), head["secret"])
                case "stop":
                    self._host.stop_instance(head["launch"], float(head["grace_s"]))
                case other:
                    raise FrameError(f"a router does not say {other!r}")
        except (KeyError, TypeError) as error:
            raise FrameError(f"a bad {head['type']!r}: {error!r}") from error

    def _end(self, end: str | HostRefused) -> None:
        if self.ended.done():
            return
        if isinstance(end, HostRefused):
            self.ended.set_exception(end)
        else:
            self.ended.set_result(end)


async def connect(address: RouterAddress, tls: LinkTlsConfig, host: Commanded) -> RouterSession:
    """Raises OSError, of which TimeoutError after `CONNECT_TIMEOUT_S` is one, and TlsFileError."""
    loop = asyncio.get_running_loop()
    sessions: list[RouterSession] = []

    def session_of(connection: FrameConnection) -> RouterSession:
        sessions.append(RouterSession(connection, host))
        return sessions[0]

    def protocol() -> FrameConnection:
        return FrameConnection(session_of, MAX_FRAME_BYTES)

    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        if address.path:
            await loop.create_unix_connection(protocol, address.path)
        elif tls.is_on:
            context, name = tls.client_context(), tls.name_of(address.host)
            await loop.create_connection(protocol, address.host, address.port, ssl=context, server_hostname=name)
        else:
            await loop.create_connection(protocol, address.host, address.port)
    return sessions[0]
