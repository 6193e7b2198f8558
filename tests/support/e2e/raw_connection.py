"""A client without manners: it writes what it likes to a socket, and leaves when it likes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.e2e.streams import GREEDY, MODEL


def post(path: str = "/v1/completions", **fields: Any) -> bytes:
    """A streamed greedy generation as it goes over the wire."""
    body = json.dumps({"model": MODEL, "stream": True, **GREEDY, **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@contextmanager
def connected(serving: ServingCluster, receive_buffer_bytes: int | None = None) -> Iterator[socket.socket]:
    """A connection to the front; closed at once at the end, whatever is under way."""
    at = urlsplit(serving.base_url)
    with socket.socket() as connection:
        if receive_buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connection.settimeout(60)
        connection.connect((at.hostname, at.port))
        yield connection


def read_until(connection: socket.socket, mark: bytes, times: int = 1) -> bytes:
    """All bytes up to the end of the read in which the mark has come so often."""
    received = bytearray()
    while received.count(mark) < times:
        data = connection.recv(65536)
        assert data, f"closed after {bytes(received[-500:])!r}"
        received += data
    return bytes(received)


def read_to_end(connection: socket.socket) -> bytes:
    """All bytes until the other side closes."""
    received = bytearray()
    while data := connection.recv(65536):
        received += data
    return bytes(received)
