"""Connections that were accepted but have not sent a greeting yet. They may be anybody's, so their number is
bounded."""

from __future__ import annotations

import select
from typing import Generic, Protocol, TypeVar

MAX_CALLERS = 64


class Connection(Protocol):
    def fileno(self) -> int: ...

    def close(self) -> None: ...


Caller = TypeVar("Caller", bound=Connection)


class Callers(Generic[Caller]):
    """The callers, watched by `poller`. If there is one too many, the one that has been silent longest is closed."""

    def __init__(self, poller: select.epoll) -> None:
        self._poller = poller
        self._callers: dict[int, Caller] = {}  # by file descriptor, oldest first

    def add(self, caller: Caller) -> None:
        if len(self._callers) >= MAX_CALLERS:
            self.dismiss(next(iter(self._callers.values())))
        self._callers[caller.fileno()] = caller
        self._poller.register(caller.fileno(), select.EPOLLIN)

    def get(self, fd: int) -> Caller | None:
        return self._callers.get(fd)

    def release(self, caller: Caller) -> None:
        """The caller has become a link, and stays registered with the poller."""
        del self._callers[caller.fileno()]

    def dismiss(self, caller: Caller) -> None:
        fd = caller.fileno()
        del self._callers[fd]
        self._poller.unregister(fd)
        caller.close()

    def close(self) -> None:
        for caller in list(self._callers.values()):
            self.dismiss(caller)
