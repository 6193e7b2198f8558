"""Asks a router over HTTP whether it is ready, which it is once its workers have generated a first token."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable

from slipstream.router.process.addresses import Endpoint

PAUSE_S = 0.05


def unverified() -> ssl.SSLContext:
    """A TLS context without verification, for a router on this machine: its certificate has the name by which clients
    elsewhere know it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def wait_until_ready(host: str, port: int, tls: bool, note: Callable[[str], None]) -> None:
    """Returns when the router is ready, however long that takes; until then `note` gets its reasons. Raises OSError if
    nothing listens there."""
    while (reason := await why_not_ready(host, port, tls)) is not None:
        note(reason)
        await asyncio.sleep(PAUSE_S)


async def why_not_ready(host: str, port: int, tls: bool) -> str | None:
    """None if the router is ready, otherwise its reason. Raises OSError."""
    reader, writer = await asyncio.open_connection(host, port, ssl=unverified() if tls else None)
    try:
        writer.write(
            f"GET /health/ready HTTP/1.1\r\nHost: {Endpoint(host, port)}\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status = head.split(b" ", 2)[1:2]
    if status == [b"200"]:
        return None
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"answer {b' '.join(status).decode('latin-1')}"
