"""A process of the cluster in virtual time: it can be stopped and killed, and keeps a connection to the router the way
`workers/router_link.py` does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from slipstream.router.protocol.messages import (
    BlocksChanged,
    Copied,
    Credits,
    Failed,
    Frozen,
    HandedOff,
    Hello,
    Reserved,
    Role,
    RouterMessage,
    StepOutput,
    Welcome,
    WorkerMessage,
)
from tests.support.faults.clockwork import Clockwork, Connection

REPEATED = StepOutput | Reserved | HandedOff | Copied | Frozen | Failed  # now and then


class RouterDoor(Protocol):
    """Where workers knock: the router, whichever incarnation of it is there."""

    def knock(self, worker: Process) -> Connection | None:
        """A new connection; None where nobody listens."""


class Chances(Protocol):
    """What goes wrong by itself, as long as faults are on."""

    def sick(self) -> bool: ...
    def engine_breaks(self) -> bool: ...
    def repeats(self) -> bool: ...
    def loses_blocks(self) -> bool: ...
    def lie(self, credits: Credits) -> Credits: ...


class Process:
    """From its start to its end. `on_end(process)` is called once, when it is over by itself or killed; `role` changes
    when a drain leads to another one."""

    def __init__(
        self,
        clock: Clockwork,
        door: RouterDoor,
        chances: Chances,
        name: str,
        role: Role,
        on_end: Callable[[Any], None],
    ) -> None:
        self.clock = clock
        self.name, self.role = name, role
        self.is_alive = True
        self.is_paused = self.has_been_paused = False
        self.was_lied_about = self._told_lie = self._has_lost_blocks = False
        self._door, self._chances, self._on_end = door, chances, on_end
        self._backlog: deque[Callable[[], None]] = deque()
        self._busy_until_s = 0.0
        self._connection: Connection | None = None
        self._hello: Hello | None = None
        self._is_welcome = False

    def hear(self, message: RouterMessage) -> None:
        """The router says something."""
        raise NotImplementedError

    def lost_router(self) -> None:
        """The connection is over; nothing more comes from it."""
        raise NotImplementedError

    def die(self) -> None:
        """What it has beside the router connection goes with it."""

    def gate(self, do: Callable[[], None]) -> Callable[[], None]:
        """`do` as it is in a process that may be stopped meanwhile, or gone."""

        def run() -> None:
            if self.is_paused:
                self._backlog.append(do)
            elif self.is_alive:
                do()

        return run

    def pause(self) -> None:
        self.is_paused = self.has_been_paused = True

    def go_on(self) -> None:
        """All that has come meanwhile is found now, in order."""
        self.is_paused = False
        while self._backlog and self.is_alive:
            self._backlog.popleft()()

    def kill(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = self.is_paused = False
        if self._connection is not None:
            self._connection.leave(0)
        self.die()
        self._on_end(self)

    def connect(self, hello: Hello) -> None:
        self._hello = hello
        self._is_welcome = False
        self.clock.after(self.clock.rng.random() * 0.05, self.gate(self._knock))

    def send(self, messages: Sequence[WorkerMessage]) -> None:
        """Written when the step that runs is over."""
        if self._connection is None or not self._connection.is_open:
            return
        for message in messages:
            said = message
            if isinstance(message, BlocksChanged) and self._chances.loses_blocks():
                self._has_lost_blocks = True
                continue
            if isinstance(message, Credits):
                said = self._chances.lie(message)
                self._told_lie = said != message
                self.was_lied_about |= self._told_lie
            self._connection.send(1, said, self._busy_until_s)
            if isinstance(message, REPEATED) and self._chances.repeats():
                self._connection.send(1, said, self._busy_until_s)

    def disconnect(self) -> None:
        """Leaves the router; nothing of it is heard any more."""
        if self._connection is not None:
            self._connection.leave(0)
        self._connection = None
        self._is_welcome = False

    def on_frame(self, connection: Connection, frame: RouterMessage) -> None:
        self.gate(lambda: self._hear(connection, frame))()

    def on_lost(self, connection: Connection) -> None:
        self.gate(lambda: self._lost(connection))()

    def _knock(self) -> None:
        self._connection = self._door.knock(self)
        if self._connection is None:
            self.clock.after(0.05 + self.clock.rng.random() * 0.2, self.gate(self._knock))
        else:
            assert self._hello is not None
            self._connection.send(1, self._hello)

    def _hear(self, connection: Connection, frame: RouterMessage) -> None:
        if connection is self._connection:
            self._is_welcome |= isinstance(frame, Welcome)
            self.hear(frame)

    def _lost(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if self._is_welcome:
            self._is_welcome = False
            self.lost_router()
        else:
            self.clock.after(0.05, self.gate(self._knock))
