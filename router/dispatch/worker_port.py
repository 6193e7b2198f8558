"""The TCP server for workers. It turns their frames into events for the dispatcher, and performs its actions.

    connection: opened -> Hello -> (Rejected, closed) | Welcome -> messages ... -> lost

A connection that sends bad frames, is silent for longer than its lease, or does not read is closed. The dispatcher gets
`worker_lost`; the other connections are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Sequence

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Action, Emit, Finish, Send
from slipstream.router.process.listening import listening_at
from slipstream.router.protocol.messages import Hello, Ping, Rejected, Role, Welcome, WorkerMessage
from slipstream.router.protocol.wire import FrameProtocol, Message, WireError
from slipstream.router.registry.hello_check import why_refused
from slipstream.router.registry.page_exchange import about_newcomer

# How much a stranger can make us buffer before it has shown the token.
MAX_HELLO_BYTES = 64 << 10
BACKLOG = 512
CLOSE_TIMEOUT_S = 2.0
PINGS_PER_LEASE = 4

log = logging.getLogger(__name__)


class WorkerPort:
    """Owns the connections, and the one timer of the dispatcher. `token` is the secret that workers must present;
    `deliver` gets the actions for clients. Everything runs on the event loop that `start` was called on, and the time
    of all events is `time.monotonic()`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        config: RouterConfig,
        *,
        model: str,
        token: str,
        router_id: str,
        deliver: Callable[[Emit | Finish], None],
    ) -> None:
        if not token:
            raise ValueError("workers need a secret token: it is empty")
        self._dispatcher = dispatcher
        self._config = config
        self._model = model
        self._token = token
        self._router_id = router_id
        self._deliver = deliver
        self._connections: set[_Connection] = set()
        self._workers: dict[PeerId, _Connection] = {}
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._joined = asyncio.Event()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._servers: list[asyncio.Server] = []
        self._listening: Sequence[socket.socket] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._is_timer_set_soon = False
        self._beat: asyncio.TimerHandle | None = None
        self._num_pings = 0
        self.num_decode_joins = 0
        self._is_closing = False

    async def start(self, listening: Sequence[socket.socket] = ()) -> Sequence[socket.socket]:
        """Listens at these sockets, or else at `worker_host:worker_port`. Returns the sockets. Raises OSError if it
        cannot listen."""
        loop = self._loop = asyncio.get_running_loop()
        host, port = self._config.worker_host, self._config.worker_port
        self._listening = listening or await asyncio.to_thread(listening_at, host, port, BACKLOG)
        for sock in self._listening:
            self._servers.append(await loop.create_server(self._accept, sock=sock, backlog=BACKLOG))
        self._schedule_beat()
        return self._listening

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that workers connect to. Valid between `start` and `close`."""
        host, port = self._listening[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        """Closes every connection, after a moment to send what is queued for it."""
        self._is_closing = True
        for handle in (self._timer, self._beat):
            if handle is not None:
                handle.cancel()
        if not self._servers:
            return
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.protocol.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._all_gone.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.protocol.abort()
            await self._all_gone.wait()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def perform(self, actions: Iterable[Action]) -> None:
        """Performs the dispatcher's actions in order. Its next deadline is looked at once per turn of the loop."""
        workers, deliver = self._workers, self._deliver
        for action in actions:
            if isinstance(action, Emit):  # most of them
                deliver(action)
            elif isinstance(action, Send):
                connection = workers.get(action.worker)
                if connection is not None:
                    connection.send(action.message)
            elif isinstance(action, Finish):
                deliver(action)
            else:
                log.warning("closing the connection of %s: %s", action.worker, action.reason)
                workers.pop(action.worker).protocol.abort()
                self.note_change()
        if not self._is_timer_set_soon:
            self._is_timer_set_soon = True
            self._loop.call_soon(self._set_timer)

    async def wait_for_change(self) -> None:
        """Returns when the next worker has joined, was lost or began to drain, or the expected workers changed."""
        await self._changed.wait()

    async def wait_for_join(self) -> None:
        """Returns when the next worker has joined."""
        await self._joined.wait()

    def drain(self, name: str, next_role: Role | None = None, migrate: bool = True) -> bool:
        """Empties the worker, which then exits or comes back as `next_role`. Returns False if it is not connected."""
        peer = self._peer_named(name)
        if peer is None:
            return False
        self.perform(self._dispatcher.drain(peer, time.monotonic(), next_role, migrate))
        self.note_change()
        return True

    def migrate(self, request_id: str, to: str | None = None) -> None:
        """Moves a running request to another decode worker, once there is room. Unknown ids are ignored."""
        peer = None if to is None else self._peer_named(to)
        if to is None or peer is not None:
            self.perform(self._dispatcher.migrate(request_id, time.monotonic(), peer))

    def note_change(self) -> None:
        """Wakes up the tasks that wait for a change."""
        self._changed.set()
        self._changed.clear()

    def _set_timer(self) -> None:
        """Sets the timer. Most deadlines are dropped before they come, so a timer that is early enough is left alone,
        even if it will find nothing to do."""
        self._is_timer_set_soon = False
        due_s = self._dispatcher.next_deadline()
        if due_s is None or self._is_closing:
            return
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        delay_s = max(due_s - time.monotonic(), 0.0)
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.perform(self._dispatcher.tick(time.monotonic()))

    def _accept(self) -> FrameProtocol:
        connection = _Connection(self, self._config.dispatch.worker_lease_s)
        self._connections.add(connection)
        self._all_gone.clear()
        return connection.protocol

    def join(self, connection: _Connection, hello: Hello) -> None:
        """A connection has said hello: it becomes a worker, or is rejected."""
        connected = [one.hello for one in self._workers.values() if one.hello is not None]
        reason = why_refused(hello, self._token, self._model, connected)
        if reason is not None:
            log.warning("rejecting %r at %s: %s", hello.worker.name, connection.protocol.peer_address, reason)
            connection.send(Rejected(reason))
            connection.protocol.close()
            return
        for remark in about_newcomer(hello, connected):
            log.warning("%s", remark)
        now = time.monotonic()
        older = self._peer_named(hello.worker.name)
        if older is not None:
            self._workers.pop(older).protocol.abort()  # it may be dead, and never read its queue
            self.perform(self._dispatcher.worker_lost(older, now, "it connected anew"))
        connection.protocol.reader.trust()
        connection.hello = hello
        self._workers[hello.worker] = connection
        log.info("%s worker %s has joined (pid %d)", hello.role, hello.worker, hello.pid)
        connection.send(Welcome(self._router_id))
        self.num_decode_joins += hello.role == "decode"
        self.perform(self._dispatcher.worker_joined(hello, now))
        self._joined.set()  # wakes the present waiters; later ones wait for the next worker
        self._joined.clear()
        self.note_change()

    def handle(self, hello: Hello, message: WorkerMessage, now: float) -> None:
        self.perform(self._dispatcher.worker_message(hello.worker, message, now))

    def forget(self, connection: _Connection, reason: Exception | None) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()
        hello = connection.hello
        if hello is None or self._workers.get(hello.worker) is not connection:
            return
        del self._workers[hello.worker]
        text = str(reason) if reason is not None else "connection closed"
        level = logging.INFO if self._is_closing else logging.WARNING
        log.log(level, "%s worker %s is lost: %s", hello.role, hello.worker, text)
        self.perform(self._dispatcher.worker_lost(hello.worker, time.monotonic(), text))
        self.note_change()

    def _peer_named(self, name: str) -> PeerId | None:
        return next((peer for peer in self._workers if peer.name == name), None)

    def _schedule_beat(self) -> None:
        period_s = self._config.dispatch.worker_lease_s / PINGS_PER_LEASE
        self._beat = self._loop.call_later(period_s, self._on_beat, time.monotonic() + period_s)

    def _on_beat(self, due_s: float) -> None:
        """Looks for silent workers, and pings all. A loss is noticed 1 to 1.25 leases after the last message."""
        now = time.monotonic()
        lease_s = self._config.dispatch.worker_lease_s
        # If this loop itself was held up, messages of the workers may still be unread in the sockets: judge next time.
        was_on_time = now - due_s < lease_s / PINGS_PER_LEASE
        self._num_pings += 1
        for connection in list(self._workers.values()):
            if was_on_time and now - connection.heard_s > lease_s:
                connection.protocol.abort(TimeoutError(f"silent for {now - connection.heard_s:.1f} s"))
            else:
                connection.send(Ping(self._num_pings))
        self._schedule_beat()


class _Connection:
    """One connection, from its first byte to its last. `hello` is set once the worker has joined."""

    def __init__(self, port: WorkerPort, hello_timeout_s: float) -> None:
        self._port = port
        self._hello_timeout_s = hello_timeout_s
        self._hello_timer: asyncio.TimerHandle | None = None
        self.hello: Hello | None = None
        self.heard_s = time.monotonic()
        self.protocol = FrameProtocol(self._received, self._lost, self._opened, max_frame_bytes=MAX_HELLO_BYTES)

    def send(self, message: Message) -> None:
        try:
            self.protocol.send(message)
        except WireError as error:
            # Requests are checked at admission, so this is a bug. The worker's state no longer follows ours.
            log.error("cannot send to %s: %s", self.protocol.peer_address, error)
            self.protocol.abort(error)

    def _opened(self) -> None:
        self._hello_timer = asyncio.get_running_loop().call_later(
            self._hello_timeout_s, self.protocol.abort, TimeoutError("no hello")
        )

    def _received(self, message: Message) -> None:
        self.heard_s = now = time.monotonic()
        if not isinstance(message, WorkerMessage):
            self.protocol.abort(WireError(f"{type(message).__name__} is not for routers"))
        elif self.hello is not None:
            self._port.handle(self.hello, message, now)
        elif isinstance(message, Hello):
            self._end_hello_timer()
            self._port.join(self, message)
        else:
            self.protocol.abort(WireError(f"the first message must be Hello, got {type(message).__name__}"))

    def _lost(self, reason: Exception | None) -> None:
        self._end_hello_timer()
        self._port.forget(self, reason)

    def _end_hello_timer(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None
