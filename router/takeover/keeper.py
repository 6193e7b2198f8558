"""Holds a router's listening sockets and client connections, so that they outlive it: the next router gets them.

It lives in another process on the same host, the cluster's driver, as threads that nearly always sleep. A router
hands over what it has by its file descriptors, over a Unix socket (SOCK_SEQPACKET, SCM_RIGHTS):

    router -> keeper   HELLO                       with the number of its place: each of several fronts has its own
    keeper -> router   (LISTENING | WORKERS | CONNECTION)* READY
    router -> keeper   LISTENING, WORKERS, CONNECTION, FORGET, FAREWELL        with a number that the router gives
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
MAX_FDS = 2  # in a message
SPARE_FILES = 256  # of those that this process may have open, for everything else that it does
OUT_OF_FILES_PAUSE_S = 0.5
PATIENCE_S = 10.0  # of both sides with each other, till all that is kept has been handed over


class Kind(IntEnum):
    """Of a message."""

    LISTENING = 1  # for clients, with the socket
    CONNECTION = 2  # with the socket and its journal
    READY = 3  # that was all
    FORGET = 4
    FAREWELL = 5  # the router ends in order: nobody comes after it
    HELLO = 6
    WORKERS = 7  # the socket that listens for workers


class Keeper:
    """Of each place there is one router at a time: the next one gets what is there when the one before has gone.

    keeper = Keeper()     # raises OSError
    ... start a router with `keeper.path` ...
    keeper.close()        # closes what is still open
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="slipstream-keeper-"))
        self._places: dict[int, Place] = {}
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()  # of the two above
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._door.bind(str(self.path))
            self._door.listen()
        except OSError:
            self._remove()
            raise
        self._most_files = allow_all_files() - SPARE_FILES
        self._thread = threading.Thread(target=self._run, name="client-keeper", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """Where a router of this host finds it; nobody but its user can open it."""
        return self._folder / "keeper.sock"

    def close(self) -> None:
        """Lets go of everything. Idempotent."""
        with self._lock:
            self._closing.set()
            links = list(self._links)
        for sock in (self._door, *links):
            with suppress(OSError):  # not connected, or gone
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for thread in self._threads:
            thread.join()
        for place in self._places.values():
            place.forget_all()
        self._remove()

    def _remove(self) -> None:
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        while True:
            try:
                link, _ = self._door.accept()
            except OSError as error:
                if self._closing.wait(OUT_OF_FILES_PAUSE_S):
                    return
                log.warning("a router cannot be let in yet: %s", error)
                continue
            with self._lock:
                if self._closing.is_set():
                    link.close()
                    return
                self._links.add(link)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(target=self._serve, args=(link,), name="client-keeper-link", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, link: socket.socket) -> None:
        """Until the router is gone."""
        try:
            link.settimeout(PATIENCE_S)
            kind, number = MESSAGE.unpack(link.recv(MESSAGE.size))
            if kind != Kind.HELLO:
                raise ValueError(f"the first message is of kind {kind}")
            with self._lock:
                place = self._places.setdefault(number, Place(self._most_files))
            with place.lock:
                place.hand_over(link)
                place.serve(link)
        except (OSError, ValueError, struct.error) as error:
            log.warning("the router's connection for what outlives it broke: %s", error)
        finally:
            with self._lock:
                self._links.discard(link)
            link.close()


class Place:
    """What one router has, and after it the next one. `lock` is held by whoever serves one of them. Connections are
    kept as long as no more than `most_files` are open in this process."""

    def __init__(self, most_files: int) -> None:
        self.lock = threading.Lock()
        self._most_files = most_files
        self._is_full = False
        self._kept: dict[int, tuple[Kind, list[int]]] = {}

    def hand_over(self, link: socket.socket) -> None:
        """Tells a router what there is. Raises OSError where that fails; then nothing is there any more: the ports must
        be free for a router that begins with nothing."""
        try:
            for number, (kind, fds) in self._kept.items():
                socket.send_fds(link, [MESSAGE.pack(kind, number)], fds)
            link.send(MESSAGE.pack(Kind.READY, max(self._kept, default=0)))
        except OSError:
            self.forget_all()
            raise

    def serve(self, link: socket.socket) -> None:
        """Takes what a router has, until it is gone. Raises OSError, ValueError."""
        link.settimeout(None)
        while True:
            message, fds, _, _ = socket.recv_fds(link, MESSAGE.size, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            if not message:
                return
            self._take(message, list(fds))

    def _take(self, message: bytes, fds: list[int]) -> None:
        kind, number = MESSAGE.unpack(message)
        if kind in (Kind.LISTENING, Kind.WORKERS, Kind.CONNECTION):
            # Where descriptors have no room the system delivers fewer. Each gets the lowest number that is free.
            if len(fds) == (2 if kind == Kind.CONNECTION else 1) and max(fds) < self._most_files:
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

    def forget_all(self) -> None:
        for _, fds in self._kept.values():
            close_all(fds)
        self._kept.clear()


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
