"""The guardian, as its driver sees it (`guardian` has the other side)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import socket

from slipstream.cluster import processes

VARIABLE = "SLIPSTREAM_GUARDIAN"  # for the driver alone: what it starts does not inherit it
READY, LET_GO = b"ready", b"let go"
RAY_ENDED = 3  # the exit code of a driver whose Ray has died


@dataclass(frozen=True, slots=True)
class Post:
    """What a guardian tells a driver that it starts: its own process, the descriptor of their link, the keeper's path
    if there is one, and whether there was a driver before."""

    guardian: int
    link: int
    keeper: str | None
    is_again: bool

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}


class Guard:
    """The guardian of this process, which has begun as a driver with that post. If the guardian is killed, the driver
    is to end."""

    def __init__(self, post: Post) -> None:
        self.pid, self.is_again = post.guardian, post.is_again
        self._has_served = False
        started = processes.start_time(self.pid)
        self.started = started if started is not None else 0.0  # seconds since the epoch; 0: it is gone
        self.keeper = ClientsAtGuardian(Path(post.keeper), post.link) if post.keeper is not None else None
        self._link = socket(fileno=post.link)
        os.set_inheritable(post.link, False)

    @classmethod
    def of_this_process(cls) -> Guard | None:
        """None: this process has no guardian. To be called once."""
        told = os.environ.pop(VARIABLE, None)
        return None if told is None else cls(Post(**json.loads(told)))

    @property
    def is_alive(self) -> bool:
        return os.getppid() == self.pid  # it is our parent, or somebody has adopted us

    @property
    def may_go_on(self) -> bool:
        """Whether it may start another driver if this one ends without having been told to (`DriverRestarts`)."""
        return self.is_alive and (self.is_again or self._has_served)

    def close(self) -> None:
        self._link.close()

    def ready(self) -> None:
        """Tells it that the cluster serves."""
        self._has_served = True
        with suppress(OSError):  # it is gone
            self._link.send(READY)

    @contextmanager
    def watched(self, gone: Callable[[], None]) -> Iterator[None]:
        """Calls `gone` on the running loop, once, as soon as there is no guardian."""
        loop = asyncio.get_running_loop()
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            loop.call_soon(gone)
            yield
            return

        def noticed() -> None:
            loop.remove_reader(handle)
            gone()

        try:
            loop.add_reader(handle, noticed)
            if not self.is_alive:  # the number may have been somebody else's by then
                loop.call_soon(noticed)
            yield
        finally:
            loop.remove_reader(handle)
            os.close(handle)


class ClientsAtGuardian:
    """The keeper in the guardian's process (`members.ClientKeeper`)."""

    def __init__(self, path: Path, link: int) -> None:
        self.path = path
        self._link = link

    def let_go(self) -> None:
        """Clients of the router before end. Blocks until they have; if the guardian is gone, they have as well."""
        with suppress(OSError):
            os.write(self._link, LET_GO)
            os.read(self._link, len(LET_GO))
