"""The worker's connection to its router, on an asyncio loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Sequence
from functools import partial

from slipstream.router.protocol.messages import (
    Hello,
    Ping,
    Pong,
    Postponed,
    Rejected,
    RouterMessage,
    Welcome,
    WorkerMessage,
)
from slipstream.router.protocol.wire import FrameProtocol, Message, WireError
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.router.tls.tls_files import TlsFileError
from slipstream.workers.engine_loop import EngineEvent, LinkLost
from slipstream.workers.process.inbox import Inbox, InboxFull
from slipstream.workers.process.keep_alive import keep_alive
from slipstream.workers.telemetry.worker_report import WorkerFailed

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
ANSWER_TIMEOUT_S = 10.0  # from the first packet to Welcome
CLOSE_TIMEOUT_S = 2.0
UNKNOWN_MODEL_S = 30.0  # for how long a new worker asks a router that does not know its model yet

NO_TLS = LinkTlsConfig()

log = logging.getLogger(__name__)


class RouterLink:
    """Connects, retrying until the router answers, and carries messages between the router and the engine thread.

    `connect` and `send` are for the engine thread, everything else is for the loop's thread. A message for the engine
    goes straight into the inbox. Ping is answered here, so that a long step is not mistaken for a dead worker.
    `on_failed` is called, on the loop, if the router refuses this worker or its address cannot be a router's.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        inbox: Inbox[EngineEvent],
        on_failed: Callable[[WorkerFailed], None],
        tls: LinkTlsConfig = NO_TLS,
    ) -> None:
        self._loop = loop
        self._host, self._port = host, port
        self._tls = tls
        self._inbox = inbox
        self._on_failed = on_failed
        self._protocol: FrameProtocol | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connection = 0  # the number of the current one; messages of older ones are ignored
        self._was_welcome = False  # whether a router has ever accepted this worker
        self._unknown_since_s: float | None = None  # when a router first said that it does not know the model
        self._answer: asyncio.Future[bool] | None = None  # to the current Hello: whether welcome
        self._over = asyncio.Event()
        self._closing = False

    def connect(self, hello: Hello) -> None:
        self._loop.call_soon_threadsafe(self._begin, hello)

    def send(self, messages: Sequence[WorkerMessage]) -> None:
        self._loop.call_soon_threadsafe(self._send, messages)

    def disconnect(self) -> None:
        """Ends the connection after what has been sent. Once this returns, nothing more of it reaches the inbox."""
        gone: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._disconnect, gone)
        gone.result()

    def redirect(self, host: str, port: int) -> None:
        """Makes the next connection go to another address."""
        self._host, self._port = host, port

    async def close(self) -> None:
        """Sends what is queued, as far as the router takes it within a moment, and ends for good."""
        self._closing = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._protocol is not None:
            self._protocol.close()
            try:
                await asyncio.wait_for(self._over.wait(), CLOSE_TIMEOUT_S)
            except TimeoutError:
                self._protocol.abort()

    def _disconnect(self, gone: concurrent.futures.Future[None]) -> None:
        self._connection += 1
        if self._connecting is not None:
            self._connecting.cancel()
        if self._protocol is not None:
            self._protocol.close()
        self._protocol = self._answer = None
        gone.set_result(None)

    def _begin(self, hello: Hello) -> None:
        if not self._closing:
            self._connecting = self._loop.create_task(self._connect(hello))
            self._connecting.add_done_callback(self._connect_ended)

    def _connect_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:  # not a failure of the network, so it would happen again
            self._on_failed(WorkerFailed(f"cannot connect to {self._host}:{self._port}: {error}"))

    async def _connect(self, hello: Hello) -> None:
        """Connects until the router has answered. A failure of the network is only a reason to try again, and so are
        files of TLS that worked before: they may be on their way."""
        delay_s = RETRY_FIRST_S
        while True:
            try:
                await self._greet(hello)
                return
            except (OSError, TlsFileError) as error:
                if isinstance(error, TlsFileError) and not self._was_welcome:
                    raise
                if delay_s == RETRY_FIRST_S:
                    log.info("the router at %s:%d does not answer yet: %s", self._host, self._port, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _greet(self, hello: Hello) -> None:
        answer = self._answer = self._loop.create_future()
        self._over.clear()
        self._connection += 1
        protocol = FrameProtocol(partial(self._received, self._connection), partial(self._lost, self._connection))
        context = self._tls.client_context() if self._tls.is_on else None
        name = self._tls.name_of(self._host) if self._tls.is_on else None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                transport, _ = await self._loop.create_connection(
                    lambda: protocol, self._host, self._port, ssl=context, server_hostname=name
                )
                keep_alive(transport.get_extra_info("socket"))
                self._protocol = protocol
                protocol.send(hello)
                welcome = await answer
        except BaseException:
            protocol.abort()
            raise
        if not welcome:
            raise ConnectionError("the connection was closed without an answer (a router of Slipstream 0.1 does that)")

    def _received(self, connection: int, message: Message) -> None:
        if connection != self._connection:
            return
        match message:
            case Ping(nonce):
                self._send([Pong(nonce)])
            case Welcome():
                if self._answer is not None and not self._answer.done():
                    self._was_welcome = True
                    assert self._protocol is not None
                    self._protocol.reader.trust()
                    self._answer.set_result(True)
                    self._put(message)
            case Rejected(reason) | Postponed(reason) if self._was_welcome:
                # Our router has died, and its port now belongs to the router of another cluster. Ours will come back
                # elsewhere, and our supervisor will give us the new address.
                log.warning("the router at %s:%d is not ours any more: %s", self._host, self._port, reason)
                self._abort(WireError(reason))
            case Postponed(reason) if self._may_ask_again():
                self._abort(WireError(reason))
            case Rejected(reason) | Postponed(reason):
                self._closing = True
                self._on_failed(WorkerFailed(f"the router rejected this worker: {reason}"))
            case _ if isinstance(message, RouterMessage):
                self._put(message)
            case _:
                self._abort(WireError(f"{type(message).__name__} is not for workers"))

    def _may_ask_again(self) -> bool:
        """Whether a router that did not know the model may have been given it by now."""
        now = self._loop.time()
        if self._unknown_since_s is None:
            self._unknown_since_s = now
            log.info("the router does not know this worker's model yet")
        return now - self._unknown_since_s < UNKNOWN_MODEL_S

    def _put(self, message: RouterMessage) -> None:
        try:
            self._inbox.put(message)
        except InboxFull as error:
            self._abort(error)

    def _abort(self, reason: Exception) -> None:
        assert self._protocol is not None
        self._protocol.abort(reason)

    def _lost(self, connection: int, reason: Exception | None) -> None:
        if connection != self._connection:
            return
        self._over.set()
        if self._closing or self._answer is None:
            return
        if not self._answer.done():
            self._answer.set_result(False)
        elif not self._answer.cancelled() and self._answer.result():
            log.warning("the connection to the router is lost%s", f": {reason}" if reason else "")
            self._inbox.put_always(LinkLost())

    def _send(self, messages: Sequence[WorkerMessage]) -> None:
        if self._protocol is None:
            return
        for message in messages:
            self._protocol.send(message)
