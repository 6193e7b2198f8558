"""Makes connections notice when the machine at the other end has vanished without a word."""

from __future__ import annotations

import socket
from typing import Protocol

IDLE_S = 5
INTERVAL_S = 2
NUM_PROBES = 3


class Socket(Protocol):
    """A socket, or uvloop's stand-in for one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def keep_alive(connection: Socket) -> None:
    """Makes TCP end the connection after about eleven seconds of silence. This is for power cuts and pulled cables; a
    process that dies is noticed at once in any case."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, NUM_PROBES)
    timeout_ms = 1000 * (IDLE_S + NUM_PROBES * INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)  # the same for data on its way
