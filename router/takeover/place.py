"""What the keeper has of one router, and who that is.

Two routers never have one place. Who comes waits till the one before has gone, and one that does not go is killed: it
was stopped, or hangs, and would take up its clients again beside the next one.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from slipstream.router.takeover.messages import MAX_FDS, MESSAGE, PATIENCE_S, Kind

log = logging.getLogger(__name__)

PEER = struct.Struct("=3i")  # process, user and group at the other end of a socket


class Holder:
    """The process at the other end of a link, as long as that is looked after."""

    def __init__(self, link: socket.socket) -> None:
        """Raises OSError."""
        self.pid, _, _ = PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        self._lock = threading.Lock()  # of the handle, whose number may be another one's after it was closed
        self._handle: int | None = None
        with suppress(OSError):  # it has gone, or lives in another namespace
            self._handle = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """Nothing happens where that cannot be done from here."""
        with self._lock:
            if self._handle is not None and self.pid != os.getpid():
                with suppress(OSError):  # it has gone, or is another user's
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None


class Place:
    """What one router has, and after it the next one. Who serves one of them takes the place first. Connections are
    kept as long as no more than `most_files` are open in this process."""

    def __init__(self, most_files: int) -> None:
        self._lock = threading.Lock()
        self._holder: Holder | None = None  # who has it, or had it last
        self._most_files = most_files
        self._is_full = False
        self._kept: dict[int, tuple[Kind, list[int]]] = {}

    def take(self, router: Holder | None, until_s: float) -> None:
        """For a router, or to empty it. Waits for the one before, which is killed if it has not gone by `until_s`
        (monotonic). Raises ValueError where that fails."""
        if not self._lock.acquire(timeout=max(0.0, until_s - time.monotonic())):
            holder = self._holder
            if holder is not None:
                log.warning("the router before, process %d, has not gone, and is killed", holder.pid)
                holder.kill()
            if not self._lock.acquire(timeout=PATIENCE_S):
                raise ValueError("the router before has not gone")
        self._holder = router

    def take_again(self, router: Holder) -> None:
        """For a router that had it. Raises ValueError if another one has it by now."""
        if not self._lock.acquire(timeout=PATIENCE_S):
            raise ValueError("another router has its place")
        if self._holder is None or self._holder.pid != router.pid:
            self._lock.release()
            raise ValueError("another router had its place since")
        self._holder = router

    def leave(self) -> None:
        self._lock.release()

    def hand_over(self, link: socket.socket, has_them: bool = False) -> None:
        """Tells a router what there is. Raises OSError where that fails; then nothing is there any more: the ports must
        be free for a router that begins with nothing. One that `has_them` gets no descriptors."""
        try:
            for number, (kind, fds) in self._kept.items():
                socket.send_fds(link, [MESSAGE.pack(kind, number)], () if has_them else fds)
            link.send(MESSAGE.pack(Kind.READY, max(self._kept, default=0)))
        except OSError:
            if not has_them:
                self.forget_all()
            raise

    def serve(self, link: socket.socket) -> None:
        """Takes what a router has, until it is gone. Raises OSError, ValueError."""
        link.settimeout(None)
        while True:
            message, fds, _, _ = socket.recv_fds(link, MESSAGE.size, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            if not message:
                return
            self._take_in(message, list(fds))

    def _take_in(self, message: bytes, fds: list[int]) -> None:
        kind, number = MESSAGE.unpack(message)
        if kind in (Kind.LISTENING, Kind.WORKERS, Kind.CONNECTION):
            # Where descriptors have no room the system delivers fewer. Each gets the lowest number that is free.
            if len(fds) == (2 if kind == Kind.CONNECTION else 1) and max(fds) < self._most_files:
                close_all(self._kept.pop(number, (kind, []))[1])
                self._kept[number] = (Kind(kind), fds)
                self._is_full = False
            else:
                close_all(fds)
                if not self._is_full:
                    log.warning("too many files are open here: further clients end with their router")
                self._is_full = True
            return
        close_all(fds)
        if kind == Kind.FORGET:
            close_all(self._kept.pop(number, (kind, []))[1])
        elif kind == Kind.FAREWELL:
            self.forget_all()

    def forget_all(self, but: frozenset[Kind] = frozenset()) -> None:
        for number, (kind, fds) in list(self._kept.items()):
            if kind not in but:
                close_all(fds)
                del self._kept[number]


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
