"""Holds a router's listening sockets and client connections, so that they outlive it: the next router gets them.

It lives in another process on the same host, the cluster's guardian, as threads that nearly always sleep. A router
hands over what it has by file descriptors (`holder_messages` is the protocol, `HolderSlot` what is held of one router).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from slipstream.router.http.failover.holder.holder_folder import HolderFolder
from slipstream.router.http.failover.holder.holder_messages import PATIENCE_S, HolderMessageKind, receive_greeting
from slipstream.router.http.failover.holder.holder_slot import HolderSlot
from slipstream.router.http.failover.holder.router_process import RouterProcess
from slipstream.router.process.open_files import allow_all_files

log = logging.getLogger(__name__)

SPARE_FILES = 256  # of those that this process may have open, for everything else that it does
OUT_OF_FILES_PAUSE_S = 0.5
LEAVING_S = 3.0  # that a router may take to go while the next one waits; fronts with TLS say a last word


class SocketHolder:
    """Each slot has one router at a time: the next one gets what is there when the previous one has gone.

    holder = SocketHolder()     # raises OSError
    ... start a router with `holder.path` ...
    holder.close()              # closes what is still open
    """

    def __init__(self) -> None:
        self._folder = HolderFolder()
        self._slots: dict[int, HolderSlot] = {}
        self._num_fronts = 0  # of the latest router, if it has said so
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()  # of the three above
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._door.bind(str(self.path))
            self._door.listen()
        except OSError:
            self._remove()
            raise
        self._max_files = allow_all_files() - SPARE_FILES
        self._thread = threading.Thread(target=self._run, name="socket-holder", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """Where a router of this host finds it; only its user can open it."""
        return self._folder.path / "keeper.sock"

    def let_go(self) -> None:
        """The next router begins with nothing, perhaps on another host: clients of the previous one hear that it is
        gone. Waits until it is. Raises ValueError if it does not go."""
        with self._lock:
            slots = list(self._slots.values())
        self._empty(slots)

    def close(self) -> None:
        """Closes everything. Idempotent."""
        with self._lock:
            self._closing.set()
            links = list(self._links)
        for sock in (self._door, *links):
            with suppress(OSError):  # not connected, or gone
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for thread in self._threads:
            thread.join()
        for slot in self._slots.values():
            slot.forget_all()
        self._remove()

    def _remove(self) -> None:
        self._door.close()
        self._folder.remove()

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
            thread = threading.Thread(target=self._serve, args=(link,), name="socket-holder-link", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, link: socket.socket) -> None:
        """Serves one router until it has gone."""
        try:
            link.settimeout(PATIENCE_S)
            kind, number, num_fronts = receive_greeting(link)
            is_known = kind == HolderMessageKind.AGAIN
            with closing(RouterProcess(link)) as router:
                if num_fronts and not is_known:
                    self._follow_num_fronts(num_fronts)
                with self._lock:
                    slot = self._slots.setdefault(number, HolderSlot(self._max_files))
                if is_known:
                    slot.take_again(router)
                else:
                    slot.take(router, time.monotonic() + LEAVING_S)
                try:
                    slot.hand_over(link, has_them=is_known)
                    slot.serve(link)
                finally:
                    slot.leave()
        except (OSError, ValueError) as error:
            log.warning("the router's connection for what outlives it broke: %s", error)
        finally:
            with self._lock:
                self._links.discard(link)
            link.close()

    def _follow_num_fronts(self, num_fronts: int) -> None:
        """A router has come with so many fronts. What was left by fronts that it does not have ends;
        and one process and several fronts listen in different ways, so between these two everything begins anew. Only
        the socket for workers stays. Raises ValueError if a previous router does not go."""
        with self._lock:
            before, self._num_fronts = self._num_fronts, num_fronts
            if before in (0, num_fronts):
                return
            begins_anew = 1 in (before, num_fronts)
            slots = [slot for number, slot in self._slots.items() if begins_anew or number > num_fronts]
        log.info("the router had %d fronts, and has %d: clients that no front can go on with end", before, num_fronts)
        self._empty(slots, but=frozenset({HolderMessageKind.WORKERS}))

    def _empty(self, slots: Iterable[HolderSlot], but: frozenset[HolderMessageKind] = frozenset()) -> None:
        """Closes all that is held there, once their routers have gone. Raises ValueError if one does not go."""
        until_s = time.monotonic() + LEAVING_S
        for slot in slots:
            slot.take(None, until_s)
            slot.forget_all(but)
            slot.leave()
