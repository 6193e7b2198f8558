"""Connections that were accepted but have not sent a greeting yet. They may be anybody's, so their number is
bounded."""

from __future__ import annotations

import select
from typing import Generic, Protocol, TypeVar

MAX_PENDING_HANDSHAKES = 64


class Handshaking(Protocol):
    def fileno(self) -> int: ...

    def close(self) -> None: ...


Caller = TypeVar("Caller", bound=Handshaking)


class PendingHandshakes(Generic[Caller]):
    """The callers, watched by `poller`. If there is one too many, the one that has been silent longest is closed."""

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
        self._pending_handshakes: dict[int, Caller] = {}  # by file descriptor, oldest first

    def add(self, caller: Caller) -> None:
        if len(self._pending_handshakes) >= MAX_PENDING_HANDSHAKES:
            self.dismiss(next(iter(self._pending_handshakes.values())))
        self._pending_handshakes[caller.fileno()] = caller
        self._poller.register(caller.fileno(), select.EPOLLIN)

    def get(self, fd: int) -> Caller | None:
        return self._pending_handshakes.get(fd)

    def release(self, caller: Caller) -> None:
        """The caller has become a link, and stays registered with the poller."""
        del self._pending_handshakes[caller.fileno()]

    def dismiss(self, caller: Caller) -> None:
        fd = caller.fileno()
        del self._pending_handshakes[fd]
        self._poller.unregister(fd)
        caller.close()

    def close(self) -> None:
        for caller in list(self._pending_handshakes.values()):
            self.dismiss(caller)
