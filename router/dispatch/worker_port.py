"""The TCP server for workers. It turns their frames into events for the dispatchers, and performs their actions.

    connection: opened -> Hello -> (Rejected or Postponed, closed) | Welcome -> messages ... -> lost

The Hello names the worker's model, and from then on the connection belongs to the dispatcher of that model. A
connection that sends bad frames, is silent for longer than its lease, or does not read is closed. Its dispatcher gets
`worker_lost`; the other connections are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.dispatch.model_dispatch import ModelDispatch
from slipstream.router.dispatch.table.actions import Action, Emit, EmitScores, Finish, Send
from slipstream.router.process.listening import listening_at
from slipstream.router.protocol.messages import (
    Hello,
    Ping,
    Postponed,
    Rejected,
    Role,
    RouterMessage,
    ServiceLevel,
    Welcome,
    WorkerMessage,
)
from slipstream.router.protocol.older_peers import VERSION_OF_0_1_0, for_0_1_0
from slipstream.router.protocol.wire import FrameProtocol, Message, WireError
from slipstream.router.registry.hello_check import UnknownModel, why_refused
from slipstream.router.registry.page_exchange import about_newcomer

# How much a stranger can make us buffer before it has shown the token.
MAX_HELLO_BYTES = 64 << 10
BACKLOG = 512
CLOSE_TIMEOUT_S = 2.0
PINGS_PER_LEASE = 4

log = logging.getLogger(__name__)


class WorkerPort:
    """Owns the connections. The names of workers are unique over all `models`, to which models may be added and from
    which they may be removed. `token` is the secret that workers must present; `deliver` gets the actions for clients.
    Everything runs on the event loop that `start` was called on, and the time of all events is `time.monotonic()`."""

    def __init__(
        self,
        models: Mapping[str, ModelDispatch],
        config: RouterConfig,
        *,
        token: str,
        router_id: str,
        deliver: Callable[[Emit | EmitScores | Finish], None],
    ) -> None:
        if not token:
            raise ValueError("workers need a secret token: it is empty")
        self._models = models
        self._config = config
        self._token = token
        self._router_id = router_id
        self._deliver = deliver
        self._connections: set[_Connection] = set()
        self._workers: dict[PeerId, _Connection] = {}
        self._peers: dict[str, PeerId] = {}  # of `_workers`, by name
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._joined = asyncio.Event()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._servers: list[asyncio.Server] = []
        self.tls = config.worker_tls.server_tls("the certificate for workers") if config.worker_tls.is_on else None
        self._listening: Sequence[socket.socket] = ()
        self._beat: asyncio.TimerHandle | None = None
        self._num_pings = 0
        self._is_closing = False

    async def start(self, listening: Sequence[socket.socket] = ()) -> Sequence[socket.socket]:
        """Listens at these sockets, or else at `worker_host:worker_port`. Returns the sockets. Raises OSError if it
        cannot listen."""
        loop = self._loop = asyncio.get_running_loop()
        host, port = self._config.worker_host, self._config.worker_port
        self._listening = listening or await asyncio.to_thread(listening_at, host, port, BACKLOG)
        for sock in self._listening:
            tls = self.tls.context if self.tls is not None else None
            self._servers.append(await loop.create_server(self._accept, sock=sock, backlog=BACKLOG, ssl=tls))
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
        if self._beat is not None:
            self._beat.cancel()
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

    def perform(self, model: ModelDispatch, actions: Iterable[Action]) -> None:
        """Performs the actions of a model's dispatcher, in order."""
        workers, deliver = self._workers, model.deliver or self._deliver
        for action in actions:
            if isinstance(action, Emit):  # most of them
                deliver(action)
            elif isinstance(action, Send):
                connection = workers.get(action.worker)
                if connection is not None:
                    connection.send(action.message)
            elif isinstance(action, Finish | EmitScores):
                deliver(action)
            else:
                log.warning("closing the connection of %s: %s", action.worker, action.reason)
                self._remove(action.worker).protocol.abort()
                self._note_left(model)
        model.note_actions()

    def send(self, peer: PeerId, message: RouterMessage) -> None:
        """Sends a worker what is not the business of its model's dispatcher. Unknown workers are ignored."""
        connection = self._workers.get(peer)
        if connection is not None:
            connection.send(message)

    async def wait_for_change(self) -> None:
        """Returns when the next worker has joined, was lost or began to drain, or the expected workers changed."""
        await self._changed.wait()

    async def wait_for_join(self) -> None:
        """Returns when the next worker has joined."""
        await self._joined.wait()

    def drain(self, name: str, next_role: Role | None = None, migrate: bool = True) -> bool:
        """Empties the worker, which then exits or comes back as `next_role`. Returns False if it is not connected."""
        peer = self._peers.get(name)
        if peer is None:
            return False
        model = self._workers[peer].model
        assert model is not None
        self.perform(model, model.dispatcher.drain(peer, time.monotonic(), next_role, migrate))
        self.note_change()
        return True

    def peer_named(self, name: str) -> PeerId | None:
        """The identity of the worker that is connected under this name, of whichever model."""
        return self._peers.get(name)

    def disconnect(self, model: ModelDispatch) -> None:
        """Closes the connections of all workers of a model."""
        for worker in list(model.dispatcher.registry):
            self._workers[worker.peer].protocol.abort()

    def reconnect(self, model: ModelDispatch, version: str) -> None:
        """Closes the connections of the workers of a version. They connect anew, and then belong elsewhere."""
        for worker in list(model.dispatcher.registry):
            if worker.version == version:
                connection = self._remove(worker.peer)
                connection.protocol.close()
                self._lose(connection, "it is to connect anew")

    def note_change(self) -> None:
        """Wakes up the tasks that wait for a change."""
        self._changed.set()
        self._changed.clear()

    def _accept(self) -> FrameProtocol:
        return _Connection(self, self._config.dispatch.worker_lease_s).protocol

    def opened(self, connection: _Connection) -> None:
        """A connection stands, its TLS handshake included; one whose handshake fails is never heard of."""
        self._connections.add(connection)
        self._all_gone.clear()
        if self._is_closing:
            connection.protocol.abort()

    def join(self, connection: _Connection, hello: Hello) -> None:
        """A connection has said hello: it becomes a worker, or is rejected."""
        model = self._models.get(hello.model)
        if model is not None:
            model = model.of_version(hello.model_version)
        older = self._peers.get(hello.worker.name)
        connected = [] if model is None else [worker.hello for worker in model.dispatcher.registry]
        beside = connected
        if older is not None:
            before = self._workers[older]
            if before.hello is not None and before.model is not model:
                beside = [*connected, before.hello]
        reason = why_refused(hello, self._token, self._served_names, beside)
        if reason is not None or model is None:
            assert reason is not None
            log.warning("rejecting %r at %s: %s", hello.worker.name, connection.protocol.peer_address, reason)
            connection.send(Postponed(str(reason)) if isinstance(reason, UnknownModel) else Rejected(reason))
            connection.protocol.close()
            return
        for remark in about_newcomer(hello, connected):
            log.warning("%s", remark)
        now = time.monotonic()
        if older is not None:
            before = self._remove(older)
            before.protocol.abort()  # it may be dead, and never read its queue
            self._lose(before, "it connected anew")
        connection.protocol.reader.trust()
        connection.hello, connection.model = hello, model
        self._workers[hello.worker] = connection
        self._peers[hello.worker.name] = hello.worker
        log.info("%s worker %s has joined (pid %d)", hello.role, hello.worker, hello.pid)
        connection.send(Welcome(self._router_id))
        if (itl_ms := model.dispatcher.slo.itl_ms) is not None and hello.version > VERSION_OF_0_1_0:
            connection.send(ServiceLevel(itl_ms))
        model.num_decode_joins += hello.role == "decode"
        self.perform(model, model.dispatcher.worker_joined(hello, now))
        self._joined.set()  # wakes the present waiters; later ones wait for the next worker
        self._joined.clear()
        self.note_change()

    @property
    def _served_names(self) -> Collection[str]:
        """Of the models that take workers."""
        return [name for name, model in self._models.items() if model.takes_workers]

    def handle(self, model: ModelDispatch, hello: Hello, message: WorkerMessage, now: float) -> None:
        self.perform(model, model.dispatcher.worker_message(hello.worker, message, now))

    def closed(self, connection: _Connection, reason: Exception | None) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()
        hello = connection.hello
        if hello is None or self._workers.get(hello.worker) is not connection:
            return
        self._remove(hello.worker)
        text = str(reason) if reason is not None else "connection closed"
        level = logging.INFO if self._is_closing else logging.WARNING
        log.log(level, "%s worker %s is lost: %s", hello.role, hello.worker, text)
        self._lose(connection, text)

    def _remove(self, peer: PeerId) -> _Connection:
        """The connection is no longer that of a worker."""
        del self._peers[peer.name]
        return self._workers.pop(peer)

    def _lose(self, connection: _Connection, reason: str) -> None:
        """The dispatcher loses a worker whose connection has been removed."""
        hello, model = connection.hello, connection.model
        assert hello is not None
        assert model is not None
        self.perform(model, model.dispatcher.worker_lost(hello.worker, time.monotonic(), reason))
        self._note_left(model)

    def _note_left(self, model: ModelDispatch) -> None:
        if not len(model.dispatcher.registry):
            model.workers_left.set()
        self.note_change()

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
        if self.tls is not None:
            self.tls.look()
        for connection in list(self._workers.values()):
            if was_on_time and now - connection.heard_s > lease_s:
                connection.protocol.abort(TimeoutError(f"silent for {now - connection.heard_s:.1f} s"))
            else:
                connection.send(Ping(self._num_pings))
        self._schedule_beat()


class _Connection:
    """One connection, from its first byte to its last. `hello` and `model` are set once the worker has joined."""

    def __init__(self, port: WorkerPort, hello_timeout_s: float) -> None:
        self._port = port
        self._hello_timeout_s = hello_timeout_s
        self._hello_timer: asyncio.TimerHandle | None = None
        self.hello: Hello | None = None
        self.model: ModelDispatch | None = None
        self.heard_s = time.monotonic()
        self.protocol = FrameProtocol(self._received, self._lost, self._opened, max_frame_bytes=MAX_HELLO_BYTES)

    def send(self, message: RouterMessage) -> None:
        if self.hello is not None and self.hello.version == VERSION_OF_0_1_0:
            message = for_0_1_0(message)
        try:
            self.protocol.send(message)
        except WireError as error:
            # Requests are checked at admission, so this is a bug. The worker's state no longer follows ours.
            log.error("cannot send to %s: %s", self.protocol.peer_address, error)
            self.protocol.abort(error)

    def _opened(self) -> None:
        self._port.opened(self)
        self._hello_timer = asyncio.get_running_loop().call_later(
            self._hello_timeout_s, self.protocol.abort, TimeoutError("no hello")
        )

    def _received(self, message: Message) -> None:
        self.heard_s = now = time.monotonic()
        if not isinstance(message, WorkerMessage):
            self.protocol.abort(WireError(f"{type(message).__name__} is not for routers"))
        elif self.hello is not None and self.model is not None:
            self._port.handle(self.model, self.hello, message, now)
        elif isinstance(message, Hello):
            self._end_hello_timer()
            self._port.join(self, message)
        else:
            self.protocol.abort(WireError(f"the first message must be Hello, got {type(message).__name__}"))

    def _lost(self, reason: Exception | None) -> None:
        self._end_hello_timer()
        self._port.closed(self, reason)

    def _end_hello_timer(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None
