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

PEER_ENDED = frozenset({6, 7, 8, 9, 11})  # TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING: first byte of tcp_info
WE_ENDED = frozenset({4, 5, 6, 7, 9, 11})  # with FIN_WAIT1 and FIN_WAIT2
ACKED_AND_RECEIVED = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
ACKED_OFFSET = 120
TCP_INFO_BYTES = 256
COUNT = struct.Struct("=i")


class SocketBytes(NamedTuple):
    """What has gone through a socket since its connection began."""

    num_written: int  # bytes that the kernel has taken from this process
    num_read: int  # bytes that it has given to it
    has_peer_ended: bool  # no more will come than is there


NO_BYTES = SocketBytes(0, 0, False)


def socket_bytes(sock: socket.socket) -> SocketBytes:
    """The counts of a connection that is not read from or written to meanwhile. Raises OSError if the system does not
    tell them."""
    before = None
    while True:
        waiting = _count(sock, termios.TIOCOUTQ), _count(sock, termios.FIONREAD)
        if waiting == before:
            break
        before = waiting  # the peer may take and send something between two questions
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < ACKED_OFFSET + ACKED_AND_RECEIVED.size:
        raise OSError("this kernel does not count the bytes of a connection")
    num_acked, num_received = ACKED_AND_RECEIVED.unpack_from(info, ACKED_OFFSET)
    num_unacked, num_unread = waiting
    has_peer_ended, have_we_ended = info[0] in PEER_ENDED, info[0] in WE_ENDED
    # The end of what one side sends counts as a byte.
    return SocketBytes(
        num_acked + num_unacked - have_we_ended, num_received - num_unread - has_peer_ended, has_peer_ended
    )


def _count(sock: socket.socket, request: int) -> int:
    answer = fcntl.ioctl(sock, request, bytes(COUNT.size))
    return int(COUNT.unpack(answer)[0])
