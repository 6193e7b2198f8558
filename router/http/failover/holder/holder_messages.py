"""The messages between a router and the socket holder, over a Unix socket (SOCK_SEQPACKET, SCM_RIGHTS):

    router -> holder   HELLO                       with the number of its slot: each of several fronts has its own
    holder -> router   (LISTENING | WORKERS | BUFFER | CONNECTION)* READY
    router -> holder   LISTENING, WORKERS, BUFFER, CONNECTION, FORGET, FAREWELL    with a number that the router gives

Where the connection breaks while the router lives, it makes another one and says AGAIN. Then it gets the same without
the descriptors, and says what has changed.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum

MESSAGE = struct.Struct("<BxxxxxxxQ")  # kind, number
GREETING = struct.Struct("<BxxxIQ")  # kind, how many fronts its router has (0: it does not say), number of the slot
MAX_FDS = 2  # in a message
PATIENCE_S = 10.0  # of both sides with each other, until all that is held has been handed over


class HolderMessageKind(IntEnum):
    """What a message is for."""

    LISTENING = 1  # a socket that listens for clients
    CONNECTION = 2  # a client's connection: its socket and its journal
    READY = 3  # that was all
    FORGET = 4  # the thing with that number is over
    FAREWELL = 5  # the router ends in order, and no other one follows
    HELLO = 6
    WORKERS = 7  # a socket that listens for workers
    AGAIN = 8  # instead of HELLO, of a router that has the slot
    BUFFER = 9  # the memory in which bytes of clients arrive


def send_greeting(sock: socket.socket, kind: HolderMessageKind, slot: int, num_fronts: int) -> None:
    """Raises OSError."""
    sock.send(GREETING.pack(kind, num_fronts, slot))


def receive_greeting(sock: socket.socket) -> tuple[HolderMessageKind, int, int]:
    """HELLO or AGAIN, the number of the router's slot, and how many fronts it has. Raises OSError, and ValueError for
    anything else."""
    try:
        kind, num_fronts, slot = GREETING.unpack(sock.recv(GREETING.size))
    except struct.error as error:
        raise ValueError(f"the first message is no greeting: {error}") from error
    if kind not in (HolderMessageKind.HELLO, HolderMessageKind.AGAIN):
        raise ValueError(f"the first message is of kind {kind}")
    return HolderMessageKind(kind), slot, num_fronts


def send(sock: socket.socket, kind: HolderMessageKind, number: int, fds: Sequence[int] = ()) -> None:
    """The other end gets duplicates of the descriptors. Raises OSError."""
    socket.send_fds(sock, [MESSAGE.pack(kind, number)], fds)


def receive(sock: socket.socket) -> tuple[HolderMessageKind, int, list[int]] | None:
    """The kind, the number and the descriptors of the next message, which are the caller's from now on; None if the
    other end has gone. Raises OSError, and ValueError for what is no message."""
    message, fds, _, _ = socket.recv_fds(sock, MESSAGE.size, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return None
    try:
        kind, number = MESSAGE.unpack(message)
        return HolderMessageKind(kind), number, list(fds)
    except (struct.error, ValueError) as error:
        close_all(fds)
        raise ValueError(f"this is no message: {error}") from error


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
