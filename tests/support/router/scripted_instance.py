"""The other end of the instance port, as tests script it: frames in and out, nothing by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from typing import Any

from slipstream.router.instances.host_messages import HostHello, host_hello_head, instance_secret
from slipstream.router.instances.messages import StartInstance

PREFIX = struct.Struct("<IQ")
TOKEN = "token-of-the-tests"
OTHER_MEMORY = "the memory of another machine"
TIMEOUT_S = 10.0


class Peer:
    """A connection to the port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connected(cls, path: str) -> Peer:
        return cls(*await asyncio.open_unix_connection(path))

    def send(self, type_: str, payload: bytes = b"", **fields: Any) -> None:
        self.send_head({"type": type_, **fields}, payload)

    def send_head(self, head: dict[str, Any], payload: bytes = b"") -> None:
        text = json.dumps(head).encode()
        self.send_bytes(PREFIX.pack(len(text), len(payload)) + text + payload)

    def send_bytes(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def receive(self) -> dict[str, Any]:
        """The head of the next frame, with its payload as `payload`."""
        async with asyncio.timeout(TIMEOUT_S):
            head_bytes, payload_bytes = PREFIX.unpack(await self._reader.readexactly(PREFIX.size))
            head: dict[str, Any] = json.loads(await self._reader.readexactly(head_bytes))
            head["payload"] = await self._reader.readexactly(payload_bytes)
            return head

    async def expect(self, type_: str) -> dict[str, Any]:
        head = await self.receive()
        assert head["type"] == type_, head
        return head

    async def wait_closed(self) -> None:
        """The other side has closed the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            assert await self._reader.read() == b""

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def host_peer(path: str, name: str, running: tuple[StartInstance, ...] = (), token: str = TOKEN) -> Peer:
    """An instance host that has said hello."""
    peer = await Peer.connected(path)
    peer.send_head(host_hello_head(HostHello(token, name, "10.0.0.1", OTHER_MEMORY, 1, running)))
    return peer


async def instance_peer(path: str, launch: str, memory_id: str, state: str) -> Peer:
    """An instance that has said hello."""
    peer = await Peer.connected(path)
    secret = instance_secret(TOKEN, launch)
    peer.send("hello", protocol=1, launch=launch, secret=secret, pid=1, memory_id=memory_id, state=state)
    return peer
