"""The guardian, as its driver sees it (`guardian` has the other side)."""

from __future__ import annotations

import asyncio
import json
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from select import POLLHUP, POLLRDHUP
from socket import MSG_DONTWAIT, socket

from slipstream.cluster.processes import process_tree

VARIABLE = "SLIPSTREAM_GUARDIAN"  # for the driver alone: what it starts does not inherit it
READY, LET_GO, ALIVE = b"ready", b"let go", b"alive"
INTERRUPTED = 130  # by a signal, before the cluster was up
RAY_ENDED = 3  # the exit code of a driver whose Ray has died


@dataclass(frozen=True, slots=True)
class DriverEnv:
    """What a guardian tells a driver that it starts: its own process, the descriptor of their link, the path of the
    socket holder (`keeper`) if there is one, whether there was a previous driver, and how often the driver says that it
    is alive (None: never)."""

    guardian: int
    link: int
    keeper: str | None
    is_again: bool
    slipstream: str = ""  # its version: it may be older than the driver's
    alive_every_s: float | None = None

    @classmethod
    def of(cls, text: str) -> DriverEnv:
        """From the variable. Fields of another version are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in json.loads(text).items() if key in known})

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}


class GuardianLink:
    """The guardian of this process, which is a driver and was started with that environment. If the guardian is killed,
    the driver is to end."""

    def __init__(self, driver_env: DriverEnv) -> None:
        self.pid, self.is_again, self.slipstream = driver_env.guardian, driver_env.is_again, driver_env.slipstream
        started = process_tree.start_time(self.pid)
        self.started = started if started is not None else 0.0  # see `start_time`; 0: it is gone
        self._alive_every_s = driver_env.alive_every_s
        self._link = socket(fileno=driver_env.link)
        self._link.set_inheritable(False)
        self.holder = ClientsAtGuardian(Path(driver_env.keeper), self._link) if driver_env.keeper is not None else None

    @classmethod
    def of_this_process(cls) -> GuardianLink | None:
        """None: this process has no guardian. To be called once."""
        driver_env = os.environ.pop(VARIABLE, None)
        return None if driver_env is None else cls(DriverEnv.of(driver_env))

    @property
    def is_alive(self) -> bool:
        return os.getppid() == self.pid  # it is our parent, or somebody has adopted us

    @property
    def starts_another(self) -> bool:
        """Whether there will be another driver if this one ends now: the guardian lives, and is not ending."""
        return not _state_of(self._link) & POLLRDHUP

    def close(self) -> None:
        self._link.close()

    def ready(self) -> None:
        """Tells it that the cluster serves."""
        self._send(READY)

    @contextmanager
    def watched(self, gone: Callable[[], None]) -> Iterator[None]:
        """Calls `gone` on the running loop, once, as soon as there is no guardian: the kernel closes its end of the
        link. One that is ending closes half of it, and sends a signal. Says meanwhile that this loop is alive, if the
        guardian wants to know."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            state = _state_of(self._link)  # else an answer came, which whom it is for takes
            if state & POLLRDHUP:
                loop.remove_reader(self._link)
            if state & POLLHUP:
                gone()

        loop.add_reader(self._link, look)
        beats = None if self._alive_every_s is None else loop.create_task(self._say_alive(self._alive_every_s))
        try:
            yield
        finally:
            loop.remove_reader(self._link)
            if beats is not None:
                beats.cancel()

    async def _say_alive(self, every_s: float) -> None:
        while True:
            self._send(ALIVE, MSG_DONTWAIT)
            await asyncio.sleep(every_s)

    def _send(self, message: bytes, flags: int = 0) -> None:
        with suppress(OSError):  # it is gone
            self._link.send(message, flags)


def _state_of(link: socket) -> int:
    """POLLRDHUP: the other end says nothing more. POLLHUP: it is closed."""
    poll = select.poll()
    poll.register(link, POLLRDHUP)
    return dict(poll.poll(0)).get(link.fileno(), 0)


class ClientsAtGuardian:
    """The holder in the guardian's process (`router_member.ClientSocketHolder`)."""

    def __init__(self, path: Path, link: socket) -> None:
        self.path = path
        self._link = link

    def let_go(self) -> None:
        """Clients of the previous router end. Blocks until they have; if the guardian is gone, they have as well."""
        with suppress(OSError):
            self._link.send(LET_GO)
            self._link.recv(len(LET_GO))
