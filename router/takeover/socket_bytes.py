"""How many bytes the kernel has taken from a process and given to it on a TCP connection, since it began. Linux only.

Sent: those that the peer has acknowledged, and those in the kernel's queue. Read: those that came, less those that
still lie there. (`struct tcp_info` of linux/tcp.h; SIOCOUTQ and SIOCINQ of tcp(7).)
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import NamedTuple

ACKED_AND_RECEIVED = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
ACKED_OFFSET = 120
TCP_INFO_BYTES = 256
COUNT = struct.Struct("=i")


class SocketBytes(NamedTuple):
    """`num_read` counts the end of the peer's sending, if that has come, as one."""

    num_written: int
    num_read: int


def socket_bytes(sock: socket.socket) -> SocketBytes:
    """Raises OSError where the system does not tell."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < ACKED_OFFSET + ACKED_AND_RECEIVED.size:
        raise OSError("this kernel does not count the bytes of a connection")
    num_acked, num_received = ACKED_AND_RECEIVED.unpack_from(info, ACKED_OFFSET)
    return SocketBytes(num_acked + _count(sock, termios.TIOCOUTQ), num_received - _count(sock, termios.FIONREAD))


def _count(sock: socket.socket, request: int) -> int:
    answer = fcntl.ioctl(sock, request, bytes(COUNT.size))
    return int(COUNT.unpack(answer)[0])
