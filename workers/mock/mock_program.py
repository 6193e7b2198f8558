"""A mock worker as a process: it speaks the real protocol over a real connection, without a model and without torch.

connect -> Hello -> Welcome -> serve ... -> connection lost -> again, as the next incarnation
                                         -> Drain for another role: finish what is here, then again, in that role
                                         -> Drain, SIGTERM: finish what is here, then end
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.block_hash import model_key
from slipstream.router.protocol.messages import (
    Ping,
    Pong,
    Postponed,
    Rejected,
    Role,
    RouterMessage,
    ServiceLevel,
    Welcome,
    WorkerMessage,
)
from slipstream.router.protocol.wire import FrameProtocol, Message, WireError
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_worker import MockWorker
from slipstream.workers.mock.output_policy import OutputPolicy
from slipstream.workers.process.keep_alive import keep_alive
from slipstream.workers.telemetry.worker_report import WorkerFailed
from slipstream.workers.transfers.ticket_issuer import TicketIssuer

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
CLOSE_TIMEOUT_S = 2.0
# The pages of a small model. Only statistics of bytes, which are never really sent, depend on this.
NUM_LAYERS, NUM_KV_HEADS, HEAD_BYTES, SLAB_PAGES = 12, 4, 4096, 8
NOWHERE = TransferAddress("127.0.0.1", 1)  # nothing is ever sent

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MockConfig:
    """One mock worker. `token` is the secret that the router expects; `policy` says what it answers, by default made-up
    tokens."""

    name: str
    role: Role
    model: str
    router_host: str
    router_port: int
    token: str
    profile: MockProfile = field(default_factory=MockProfile)
    model_version: str = ""
    policy: OutputPolicy | None = None
    tls: LinkTlsConfig = field(default_factory=LinkTlsConfig)


class MockProgram:
    """Connects, serves, and reconnects, until it is drained. Everything runs on one event loop.

    Unlike a real worker, it forgets its prefix cache when it changes its role, as it does with every new
    incarnation."""

    def __init__(self, config: MockConfig) -> None:
        self._config = config  # with the role of the next incarnation
        # Epochs follow the wall clock, so a restarted process has a later one.
        worker = PeerId(config.name, time.time_ns() // 1_000_000)
        self._tickets = TicketIssuer(worker, (NOWHERE,), SLAB_PAGES, NUM_LAYERS, NUM_KV_HEADS, HEAD_BYTES)
        self._serving: _Serving | None = None
        self._draining = False

    async def run(self) -> None:
        """Runs the worker. Returns after a drain that ends it; raises WorkerFailed if the router rejects it."""
        delay_s = RETRY_FIRST_S
        while not (self._draining and self._serving is None):
            self._serving = _Serving(self._config, self._tickets)
            try:
                await self._serving.connect()
                delay_s = RETRY_FIRST_S
                if self._draining:
                    self._serving.drain()
                await self._serving.over
            except OSError as error:
                if delay_s == RETRY_FIRST_S:
                    config = self._config
                    log.warning("%s:%d does not answer yet: %s", config.router_host, config.router_port, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
            finally:
                protocol = self._serving.worker.protocol
                is_drained, next_role = protocol.is_draining, protocol.next_role
                await self._serving.close()
                self._serving = None
            if is_drained:
                if next_role is None or self._draining:
                    return
                self._config = replace(self._config, role=next_role)

    def drain(self) -> None:
        """Finish what is here, then end."""
        self._draining = True
        if self._serving is not None:
            self._serving.drain()


class _Serving:
    """One connection: an incarnation of the worker."""

    def __init__(self, config: MockConfig, tickets: TicketIssuer) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._peer = tickets.open_epoch()
        model = model_key(config.model, config.model_version)
        self.worker = MockWorker(config.profile, config.role, tickets, model, has_stats=True, policy=config.policy)
        self._connection = FrameProtocol(self._received, self._lost)
        self._closed = asyncio.Event()
        self._out: list[WorkerMessage] = []
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._welcome: asyncio.Future[None] = self._loop.create_future()
        self.over: asyncio.Future[None] = self._loop.create_future()

    async def connect(self) -> None:
        """Connects to the router. Raises OSError if there is none, WorkerFailed if it rejects the worker."""
        config = self._config
        try:
            transport, _ = await self._loop.create_connection(
                lambda: self._connection,
                config.router_host,
                config.router_port,
                ssl=config.tls.client_context() if config.tls.is_on else None,
                server_hostname=config.tls.name_of(config.router_host) if config.tls.is_on else None,
            )
        except OSError:
            self._closed.set()
            raise
        keep_alive(transport.get_extra_info("socket"))
        hello = config.profile.hello(self._peer, config.role, config.model, NOWHERE)
        self._connection.send(replace(hello, token=config.token, pid=os.getpid(), model_version=config.model_version))
        await self._welcome

    def drain(self) -> None:
        """Begins to drain, so that the worker ends afterwards. Only the first drain counts."""
        self.worker.protocol.drain(time.monotonic(), math.inf, None)
        self._take_turn_soon()

    async def close(self) -> None:
        """Closes the connection, after a moment to send what is queued."""
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._connection.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._closed.wait()
        except TimeoutError:
            self._connection.abort()

    def _received(self, message: Message) -> None:
        match message:
            case Ping(nonce):
                self._connection.send(Pong(nonce))
            case Welcome():
                self._connection.reader.trust()
                if not self._welcome.done():
                    self._welcome.set_result(None)
                self._take_turn_soon()
            case ServiceLevel():
                pass  # a profile's steps are what they are
            case Postponed(reason):
                if not self._welcome.done():
                    self._welcome.set_exception(ConnectionRefusedError(f"rejected: {reason}"))
            case Rejected(reason):
                if not self._welcome.done():
                    self._welcome.set_exception(WorkerFailed(f"the router rejected this worker: {reason}"))
            case _ if isinstance(message, RouterMessage):
                self._out += self.worker.handle(message, time.monotonic())
                self._take_turn_soon()
            case _:
                self._connection.abort(WireError(f"{type(message).__name__} is not for workers"))

    def _lost(self, reason: Exception | None) -> None:
        self._closed.set()
        if not self._welcome.done():
            self._welcome.set_exception(ConnectionError("the connection was closed without an answer"))
        if not self.over.done():
            self.over.set_result(None)

    def _take_turn_soon(self) -> None:
        """Takes a turn after everything else that the loop has to do now. This is used even for a step that is due at
        once, because `call_at` would sometimes delay it to the next millisecond, the resolution of uvloop's clock."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Sends one batch, like a real worker in each step: the answers to all messages, the output of a step that is
        due, and what there is to report after that."""
        self._turn = None
        now_s = time.monotonic()
        out, self._out = self._out, []
        out += self.worker.advance(now_s)
        out += self.worker.reports(now_s)
        if out:
            self._connection.send_batch(out)
        if self.worker.protocol.is_finished and not self.over.done():
            self.over.set_result(None)
        self._set_timer()

    def _on_timer(self) -> None:
        self._timer = None
        self._take_turn()

    def _set_timer(self) -> None:
        waiting = (self.worker.next_deadline_s(), self.worker.protocol.next_report_s())
        due_s = min((at_s for at_s in waiting if at_s is not None), default=None)
        wait_s = due_s - time.monotonic() if due_s is not None else None
        if wait_s is not None and wait_s <= 0:
            self._take_turn_soon()
            return
        if self._timer is not None:
            if due_s is not None and self._timer_due_s <= due_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s is not None and wait_s is not None:
            self._timer_due_s = due_s
            self._timer = self._loop.call_later(wait_s, self._on_timer)


async def run_mock_workers(configs: Sequence[MockConfig]) -> None:
    """Runs several mock workers in one process, until SIGTERM or SIGINT has drained them. Raises WorkerFailed."""
    workers = [MockProgram(config) for config in configs]

    def drain() -> None:
        for worker in workers:
            worker.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain)
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run())
