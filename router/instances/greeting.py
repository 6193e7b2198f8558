"""The first frame of a connection: an instance host or an instance shows who it is."""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Protocol

from slipstream.router.instances.frames.frame_connection import FrameConnection
from slipstream.router.instances.frames.frame_reader import FrameError, Json, Payload
from slipstream.router.instances.host_messages import (
    HostHello,
    InstanceHello,
    host_hello,
    instance_hello,
    instance_secret,
)
from slipstream.router.instances.messages import PROTOCOL

MAX_HELLO_BYTES = 1 << 20  # what a stranger can make us buffer; a host lists its instances
HELLO_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class GreetedPort(Protocol):
    """Gets the connections that have shown who they are."""

    def host_came(self, hello: HostHello, connection: FrameConnection) -> None: ...

    def instance_came(self, hello: InstanceHello, connection: FrameConnection) -> None: ...


class Greeting:
    """The receiver of a connection's frames until its hello has been accepted."""

    def __init__(self, connection: FrameConnection, token: str, port: GreetedPort) -> None:
        self.connection = connection
        self._token = token
        self._port = port
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HELLO_TIMEOUT_S, connection.abort, "it did not say hello")

    def received(self, head: Json, payload: Payload) -> None:
        """Raises FrameError for a stranger."""
        match head["type"]:
            case "host_hello":
                host = host_hello(head)
                if self._accepts(host.protocol, host.token, self._token):
                    self._port.host_came(host, self.connection)
            case "hello":
                instance = instance_hello(head)
                secret = instance_secret(self._token, instance.launch)
                if self._accepts(instance.protocol, instance.secret, secret):
                    self._port.instance_came(instance, self.connection)
            case other:
                raise FrameError(f"{other!r} came before a hello")

    def lost(self, reason: str) -> None:
        self._timer.cancel()

    def _accepts(self, protocol: int, shown: object, wanted: str) -> bool:
        self._timer.cancel()
        if protocol != PROTOCOL:
            why = f"it speaks protocol {protocol!r}, and this router {PROTOCOL}"
        elif not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), wanted.encode()):
            why = "its token or secret is wrong"
        else:
            return True
        log.warning("a connection to the instance port was refused: %s", why)
        self.connection.send({"type": "refused", "reason": why})
        self.connection.close(why)
        return False
