"""Holds a router's listening sockets and client connections, so that they outlive it: the next router gets them.

It lives in another process on the same host, the cluster's driver, as a thread that nearly always sleeps. A router
hands over what it has by its file descriptors, over a Unix socket (SOCK_SEQPACKET, SCM_RIGHTS):

    keeper -> router   (LISTENING | CONNECTION)* READY                         once, at the beginning
    router -> keeper   LISTENING, CONNECTION, JOURNAL, FORGET, FAREWELL        with a number that the router gives
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import struct
import tempfile
import threading
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from slipstream.router.open_files import allow_all_files

log = logging.getLogger(__name__)

MESSAGE = struct.Struct("<BxxxxxxxQ")  # kind, number
MAX_FDS = 8
SEND_PATIENCE_S = 10.0  # for a router that does not take what is its own


class Kind(IntEnum):
    """Of a message."""

    LISTENING = 1  # with the sockets
    CONNECTION = 2  # with the socket and, from the keeper, its journal, if it has one
    JOURNAL = 3  # of the connection with that number
    READY = 4  # that was all
    FORGET = 5
    FAREWELL = 6  # the router ends in order: nobody comes after it


class Keeper:
    """One router at a time: when the next one connects, the one before is gone, whatever it may think itself.

    keeper = Keeper()     # raises OSError
    ... start a router with `keeper.path` ...
    keeper.close()        # closes what is still open
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="slipstream-keeper-"))
        self._kept: dict[int, tuple[Kind, list[int]]] = {}
        self._link: socket.socket | None = None
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._door.bind(str(self.path))
            self._door.listen()
        except OSError:
            self._remove()
            raise
        allow_all_files()
        self._thread = threading.Thread(target=self._run, name="client-keeper", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """Where a router of this host finds it; nobody but its user can open it."""
        return self._folder / "keeper.sock"

    def close(self) -> None:
        """Lets go of everything. Idempotent."""
        for sock in (self._door, self._link):
            if sock is not None:
                with suppress(OSError):  # not connected, or gone
                    sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._remove()

    def _remove(self) -> None:
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        try:
            while True:
                try:
                    link, _ = self._door.accept()
                except OSError:
                    return  # closed
                with link:
                    self._link = link
                    self._serve(link)
        finally:
            self._forget_all()

    def _serve(self, link: socket.socket) -> None:
        """Until the router is gone."""
        try:
            link.settimeout(SEND_PATIENCE_S)
            for number, (kind, fds) in self._kept.items():
                socket.send_fds(link, [MESSAGE.pack(kind, number)], fds)
            link.send(MESSAGE.pack(Kind.READY, max(self._kept, default=0)))
            link.settimeout(None)
            while True:
                message, fds, _, _ = socket.recv_fds(link, MESSAGE.size, MAX_FDS)
                if not message:
                    return
                self._take(message, list(fds))
        except (OSError, ValueError, struct.error) as error:
            log.warning("the router's connection for what outlives it broke: %s", error)

    def _take(self, message: bytes, fds: list[int]) -> None:
        kind, number = MESSAGE.unpack(message)
        if kind in (Kind.LISTENING, Kind.CONNECTION):
            self._kept[number] = (Kind(kind), fds)
            return
        if kind == Kind.JOURNAL and number in self._kept:
            self._kept[number][1].extend(fds)
            return
        close_all(fds)
        if kind == Kind.FORGET:
            close_all(self._kept.pop(number, (kind, []))[1])
        elif kind == Kind.FAREWELL:
            self._forget_all()

    def _forget_all(self) -> None:
        for _, fds in self._kept.values():
            close_all(fds)
        self._kept.clear()


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
