"""Carries the connections of a host's instances to a router on another machine, over TLS.

    instance --- Unix socket, of this user only ---> relay --- TLS ---> the router's instance port

Instances are programs of models, which read and write their socket in several threads. So they have no TLS themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

from slipstream.router.instances.frames.frame_connection import keep_alive
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.router.tls.tls_files import TlsFileError
from slipstream.workers.instances.host_config import RouterAddress

PART_BYTES = 256 << 10  # that are read at a time, and held while the other side is slow
CONNECT_TIMEOUT_S = 3.0
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0

log = logging.getLogger(__name__)


class RouterRelay:
    """What an instance sends before the router is there waits for it."""

    def __init__(self, router: RouterAddress, tls: LinkTlsConfig) -> None:
        self._router = router
        self._tls = tls
        self._running: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serves while the context is open; yields the address for instances. Raises OSError."""
        with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:  # of mode 0700
            path = str(Path(folder) / "router.sock")
            server = await asyncio.start_unix_server(self._accept, path, limit=PART_BYTES)
            try:
                yield f"unix:{path}"
            finally:
                server.close()
                for task in list(self._running):
                    task.cancel()
                await asyncio.gather(*self._running, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer), name="connection of an instance")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the instance's connection until one of the two sides has ended its own."""
        try:
            from_router, to_router = await self._connected()
            try:
                await _until_one_ends(_copy(reader, to_router), _copy(from_router, writer))
            finally:
                to_router.close()
        finally:
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                return await self._connect()
            except (OSError, TlsFileError) as error:
                log.debug("an instance waits for the router: %s", error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LONGEST_RETRY_S)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError, of which TimeoutError is one, and TlsFileError."""
        router = self._router
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                router.host,
                router.port,
                limit=PART_BYTES,
                ssl=self._tls.client_context(),
                server_hostname=self._tls.name_of(router.host),
            )
        keep_alive(writer.transport)
        return reader, writer


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the end of what is read, and all of it is written."""
    with contextlib.suppress(OSError):  # the connection is lost
        while data := await reader.read(PART_BYTES):
            writer.write(data)
            await writer.drain()


async def _until_one_ends(*copies: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.create_task(copy) for copy in copies]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
