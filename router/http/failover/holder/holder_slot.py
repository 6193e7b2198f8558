"""What the socket holder has of one router, and which router that is.

Two routers never have one slot. A new one waits until the previous one has gone. One that does not go is killed: it
was stopped, or hangs, and would later serve its clients again beside the next one.
"""

from __future__ import annotations

import logging
import socket
import threading
import time

from slipstream.router.http.failover.holder.holder_messages import (
    PATIENCE_S,
    HolderMessageKind,
    close_all,
    receive,
    send,
)
from slipstream.router.http.failover.holder.router_process import RouterProcess

log = logging.getLogger(__name__)


class HolderSlot:
    """The sockets and journals of one router, which the next one gets. A thread that serves a router takes the slot
    first and leaves it at the end. Nothing more is held while `max_files` are open in this process."""

    def __init__(self, max_files: int) -> None:
        self._lock = threading.Lock()  # owned by the thread that has taken the slot
        self._router: RouterProcess | None = None  # which has the slot, or had it last
        self._max_files = max_files
        self._is_full = False  # which is logged once
        self._held: dict[int, tuple[HolderMessageKind, list[int]]] = {}  # descriptors by the router's number for them

    def take(self, router: RouterProcess | None, until_s: float) -> None:
        """For a router, or (None) to empty it. Waits for the previous router, and kills it if it has not gone by
        `until_s` (monotonic). Raises ValueError if that fails."""
        if not self._lock.acquire(timeout=max(0.0, until_s - time.monotonic())):
            before = self._router
            if before is not None:
                log.warning("the previous router, process %d, has not gone, and is killed", before.pid)
                before.kill()
            if not self._lock.acquire(timeout=PATIENCE_S):
                raise ValueError("the previous router has not gone")
        self._router = router

    def take_again(self, router: RouterProcess) -> None:
        """For a router that has had it all the time. Raises ValueError if another one has it by now."""
        if not self._lock.acquire(timeout=PATIENCE_S):
            raise ValueError("another router has its slot")
        if self._router is None or self._router.pid != router.pid:
            self._lock.release()
            raise ValueError("another router had its slot since")
        self._router = router

    def leave(self) -> None:
        self._lock.release()

    def hand_over(self, link: socket.socket, has_them: bool = False) -> None:
        """Tells a router what there is, with the descriptors unless it `has_them`. Raises OSError if that fails; then
        a router without them begins with nothing, so nothing is held any more: its ports must be free."""
        try:
            held = sorted(self._held.items(), key=lambda item: item[1][0] == HolderMessageKind.CONNECTION)  # these last
            for number, (kind, fds) in held:
                send(link, kind, number, () if has_them else fds)
            send(link, HolderMessageKind.READY, max(self._held, default=0))
        except OSError:
            if not has_them:
                self.forget_all()
            raise

    def serve(self, link: socket.socket) -> None:
        """Takes in what a router says until it has gone. Raises OSError, ValueError."""
        link.settimeout(None)
        while (message := receive(link)) is not None:
            kind, number, fds = message
            if kind in (
                HolderMessageKind.LISTENING,
                HolderMessageKind.WORKERS,
                HolderMessageKind.BUFFER,
                HolderMessageKind.CONNECTION,
            ):
                self._keep(kind, number, fds)
                continue
            close_all(fds)  # there should be none
            if kind == HolderMessageKind.FORGET:
                self._forget(number)
            elif kind == HolderMessageKind.FAREWELL:
                self.forget_all()

    def _keep(self, kind: HolderMessageKind, number: int, fds: list[int]) -> None:
        # Where descriptors have no room the system delivers fewer. Each gets the lowest number that is free.
        if len(fds) == (2 if kind == HolderMessageKind.CONNECTION else 1) and max(fds) < self._max_files:
            self._forget(number)
            self._held[number] = kind, fds
            self._is_full = False
            return
        close_all(fds)
        if not self._is_full:
            log.warning("too many files are open here: further clients end with their router")
        self._is_full = True

    def _forget(self, number: int) -> None:
        if number in self._held:
            _, fds = self._held.pop(number)
            close_all(fds)

    def forget_all(self, but: frozenset[HolderMessageKind] = frozenset()) -> None:
        """Closes everything that is held, except the kinds in `but`."""
        for number, (kind, _) in list(self._held.items()):
            if kind not in but:
                self._forget(number)
