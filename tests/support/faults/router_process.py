"""The router as a process in virtual time: the real dispatcher behind a worker port that keeps the rules of the real
one (`router/dispatch/worker_port.py`): hello before anything else, one connection a name, silent workers are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Action, Close, Emit, EmitScores, Finish, Send
from slipstream.router.protocol.messages import Hello, Welcome
from tests.support.faults.clockwork import Clockwork, Connection
from tests.support.faults.conduct import Conduct


class RouterProcess:
    """One incarnation. `deliver` gets what is for clients, `after_event` is called after each event."""

    def __init__(
        self,
        clock: Clockwork,
        config: DispatchConfig,
        deliver: Callable[[Emit | EmitScores | Finish], None],
        after_event: Callable[[], None],
        may_expel: Callable[[PeerId], bool],
        tokens_of: Callable[[str], list[int]],
    ) -> None:
        self.conduct = Conduct(tokens_of)
        self.dispatcher = Dispatcher(config)
        self.is_alive = True
        self._clock = clock
        self._lease_s = config.worker_lease_s
        self._deliver = deliver
        self._after_event = after_event
        self._may_expel = may_expel
        self._hellos: dict[Connection, Hello] = {}
        self._open: dict[Connection, None] = {}  # in order: what is done to all must not depend on addresses
        self._workers: dict[PeerId, Connection] = {}
        self._tick_s: float | None = None

    @property
    def connections(self) -> list[Connection]:
        return list(self._workers.values())

    @property
    def peers(self) -> list[PeerId]:
        return list(self._workers)

    def die(self) -> None:
        self.is_alive = False
        for connection in list(self._open):
            connection.leave(1)

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Emit() | EmitScores() | Finish():
                    self._deliver(action)
                    if isinstance(action, Finish):
                        self.conduct.finished(action.request_id)
                case Send(peer, message):
                    connection = self._workers.get(peer)
                    assert connection is not None, f"{message} for {peer}, which is gone"
                    self.conduct.sent(peer, message)
                    connection.send(0, message)
                case Close(peer, reason):
                    assert self._may_expel(peer), f"{peer} is sent away: {reason}"
                    self.conduct.left(peer)
                    self._part(self._workers.pop(peer))
        self._after_event()
        due_s = self.dispatcher.next_deadline()
        if due_s is not None and due_s != self._tick_s:
            self._tick_s = due_s
            self._clock.at(due_s, lambda: self._tick(due_s))

    def _tick(self, due_s: float) -> None:
        if self.is_alive and due_s == self._tick_s:
            self._tick_s = None
            self.perform(self.dispatcher.tick(self._clock.now))

    def accept(self, connection: Connection) -> None:
        self._open[connection] = None

    def on_frame(self, connection: Connection, frame: Any) -> None:
        if not self.is_alive or connection not in self._open:
            return
        hello = self._hellos.get(connection)
        if hello is not None:
            if self._workers.get(hello.worker) is connection:
                self.conduct.heard(hello.worker, frame)
                self.perform(self.dispatcher.worker_message(hello.worker, frame, self._clock.now))
            return
        assert isinstance(frame, Hello)
        older = next((peer for peer in self._workers if peer.name == frame.worker.name), None)
        if older is not None:
            assert older.epoch <= frame.worker.epoch, f"{frame.worker} would be sent away for {older}"
            self._part(self._workers.pop(older))
            self._lost(older)
        self._hellos[connection] = frame
        self._workers[frame.worker] = connection
        self.conduct.joined(frame.worker)
        connection.send(0, Welcome("router"))
        self.perform(self.dispatcher.worker_joined(frame, self._clock.now))

    def on_lost(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        hello = self._hellos.pop(connection, None)
        if self.is_alive and hello is not None and self._workers.get(hello.worker) is connection:
            del self._workers[hello.worker]
            self._lost(hello.worker)

    def _lost(self, peer: PeerId) -> None:
        others = list(self._workers)
        self.conduct.left(peer)
        self.perform(self.dispatcher.worker_lost(peer, self._clock.now))
        self.conduct.check_told(peer, others)

    def find_silent(self, connection: Connection, is_silent: Callable[[], bool]) -> None:
        """Whoever falls silent now is lost in a lease or a little more, if it still is then."""
        delay_s = self._lease_s * (1 + self._clock.rng.random() / 4)

        def look() -> None:
            if self.is_alive and connection in self._open and is_silent():
                self._part(connection)
                self.on_lost(connection)

        self._clock.after(delay_s, look)

    def _part(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        connection.leave(1)
