"""A front process: HTTP, tokenising, detokenising and event streams, for a dispatcher in another process.

    python -m slipstream.router.frontends.front_process FD COUNTS_FD CELL SLOT

FD is the inherited end of a socket pair, COUNTS_FD that of `ConnectionCounts`, where this front has a cell; SLOT is its
slot at the socket holder. When the other end of the pair closes, the dispatcher has ended: streams wait at the socket
holder for the next router, or end with an error where they cannot (no holder, TLS), and the process ends. It lives no
longer than the process that started it, however that ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import uvloop

from slipstream.router.api.anthropic.error_form import error_form
from slipstream.router.api.exchange_context import ApiExchange, ExchangeContext
from slipstream.router.api.ui.live_pages import LIVE_PATH
from slipstream.router.front.api_front import ApiFront
from slipstream.router.frontends.connection_counts import SharedConnectionCount
from slipstream.router.frontends.front_live import FrontLive
from slipstream.router.frontends.front_messages import (
    FRONTS,
    Begin,
    Counts,
    DrainFront,
    Leave,
    Listening,
    LoadModel,
    ModelChange,
    NameModel,
    RemoveModel,
    TakeOver,
)
from slipstream.router.frontends.front_models import FrontModels
from slipstream.router.frontends.front_setup import FrontSetup, served_limits
from slipstream.router.frontends.remote_access import RemoteAccess
from slipstream.router.frontends.remote_dispatcher import RemoteDispatcher
from slipstream.router.frontends.tally import counts_of
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.reader import Request
from slipstream.router.http.server import LAST_WORDS_S, HttpServer
from slipstream.router.observability.tracing.begin import begin_tracing
from slipstream.router.process.gc_tuning import spare_garbage_collector
from slipstream.router.process.log_format import log_to_stderr
from slipstream.router.process.open_files import allow_all_files
from slipstream.router.protocol.wire import FrameProtocol
from slipstream.router.text.encoding import encode_pool

OWN_PATHS = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/health/live"),
        *("/v1/responses", "/v1/conversations", "/v1/messages", "/v1/files", "/v1/batches", "/ui"),
    }
)
OWN_ITEMS = ("/ui/", *(f"/v1/{name}/" for name in ("responses", "conversations", "messages", "files", "batches")))
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # that may be repeated
HEARTBEAT_S = 1.0  # after which counts are sent again even if they have not changed
TELL_COUNTS_S = 0.2  # how old the counts of a front on the metrics page may be

log = logging.getLogger(__name__)


class FrontProcess:
    """Life cycle: `run`. Everything on one event loop."""

    def __init__(self, link: socket.socket, connections: SharedConnectionCount, slot: int) -> None:
        self._socket = link
        self._slot = slot
        self._failover: FailoverSession | None = None
        self._leaves_clients = False  # to the next router's front
        self._taking_over: asyncio.Task[None] | None = None
        self._changes: asyncio.Queue[ModelChange | TakeOver] = asyncio.Queue()  # a few in the life of a cluster
        self._following: asyncio.Task[None]
        self._connections = connections
        self._begun: asyncio.Future[FrontSetup] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._link = FrameProtocol(self._received, self._lost, vocabulary=FRONTS)
        self._dispatcher: RemoteDispatcher | None = None
        self._server: HttpServer[ExchangeContext] | None = None
        self._count: Callable[[], Counts]
        self._sent: Counts | None = None
        self._sent_s = 0.0  # of the loop's clock
        self._tell_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serves from the setup to the end of a drain or of the dispatcher."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=self._socket)
        setup = await self._begun
        setup.log.adopt()
        async with AsyncExitStack() as cleanup:
            server = await self._serve(setup, cleanup)
            await self._over.wait()
            await server.drain(LAST_WORDS_S)
            self._tell_counts()
        self._link.close()

    async def _serve(self, setup: FrontSetup, cleanup: AsyncExitStack) -> HttpServer[ExchangeContext]:
        config, loop = setup.config, asyncio.get_running_loop()
        allow_all_files()
        failover = None
        if setup.holder_path is not None:
            failover = self._failover = await loop.run_in_executor(
                None, FailoverSession.of_holder, setup.holder_path, self._slot
            )
            self._leaves_clients = failover is not None and not config.http.tls.is_on
        models = FrontModels(cleanup.enter_context(encode_pool(config.api.prompt_memory_bytes)), self._link.send)
        files = cleanup.enter_context(ThreadPoolExecutor(1, thread_name_prefix="access"))
        catalog = await models.catalog(setup.models.values())
        tracer = begin_tracing(config.tracing, next(iter(setup.models)) if len(setup.models) == 1 else "", cleanup)
        dispatcher = self._dispatcher = RemoteDispatcher(self._link.send, traces=tracer is not None)
        for model in setup.models.values():
            dispatcher.received(served_limits(model))
        access = RemoteAccess(config.access, files, dispatcher)
        access.open()
        cleanup.push_async_callback(access.close)
        front = ApiFront(catalog, dispatcher, config, access, tracer)
        front.open(cleanup)
        new_server = HttpServer if failover is None else partial(FailoverServer, failover=failover)
        server = self._server = new_server(
            config.http,
            DividedHandler(front, dispatcher, self._tell_counts),
            ExchangeContext,
            check_caller=front.check_caller,
            error_form_of=error_form,
            shares_port=True,
            count=self._connections,
            unix_socket=None if setup.unix_socket_fd is None else socket.socket(fileno=setup.unix_socket_fd),
        )
        self._count = lambda: Counts(
            counts_of(front.counts, access.keys.num_unauthenticated, front.trace_counts), server.num_connections
        )
        if setup.is_leaving:
            server.leave()
        if setup.is_ending:
            server.refuse_clients()
        port = await server.start()
        cleanup.push_async_callback(server.stop)
        cleanup.callback(self._stop_sending)
        self._following = asyncio.create_task(self._follow(models, front))
        cleanup.callback(self._following.cancel)
        self._tell_counts()
        spare_garbage_collector()
        self._link.send(Listening(port))
        return server

    def _tell_counts(self) -> None:
        """What was counted until now, and again in a while."""
        self._stop_sending()
        counts, loop = self._count(), asyncio.get_running_loop()
        if counts != self._sent or loop.time() - self._sent_s >= HEARTBEAT_S:
            self._sent, self._sent_s = counts, loop.time()
            self._link.send(counts)
        self._tell_timer = loop.call_later(TELL_COUNTS_S, self._tell_counts)

    def _stop_sending(self) -> None:
        if self._tell_timer is not None:
            self._tell_timer.cancel()
            self._tell_timer = None

    async def _drain(self, deadline_s: float) -> None:
        """Ends this process once nothing runs here; after the deadline the dispatcher will end it."""
        await self._changes.join()  # what has not come yet would not be waited for
        if self._taking_over is not None:
            await self._taking_over
        if self._server is None or await self._server.drain(deadline_s):
            self._over.set()

    def _received(self, message: Any) -> None:
        match message:
            case Begin(pickled):
                self._begun.set_result(pickle.loads(pickled))
            case TakeOver() | LoadModel() | NameModel() | RemoveModel():
                self._changes.put_nowait(message)
            case Leave() if self._server is not None:
                self._server.leave()
            case DrainFront(deadline_s):
                self._draining = asyncio.create_task(self._drain(deadline_s))
            case _ if self._dispatcher is not None:
                self._dispatcher.received(message)

    async def _follow(self, models: FrontModels, front: ApiFront) -> None:
        """Changes the models one after the other, while requests are served. Clients of the previous front come after
        the changes that were sent before."""
        while True:
            message = await self._changes.get()
            try:
                if not isinstance(message, TakeOver):
                    await models.apply(message, front)
                elif isinstance(self._server, FailoverServer):
                    self._taking_over = asyncio.create_task(self._server.take_over())
            except Exception:  # the next front begins with the models as they are to be
                log.exception("this front ends: it cannot apply %s", type(message).__name__)
                os._exit(1)
            finally:
                self._changes.task_done()

    def _lost(self, reason: Exception | None) -> None:
        if self._failover is not None and not self._failover.has_said_farewell:
            if self._leaves_clients:
                os._exit(1)  # without a response: the next front continues with the clients, even during a drain
            self._failover.close()  # clients to come wait for the next router
        if not self._begun.done():
            self._begun.set_exception(ConnectionError("the dispatcher has ended"))
        if self._dispatcher is not None:
            self._dispatcher.lost()
        self._over.set()


class DividedHandler:
    """Generations, what is in the store, and the page for people are served here; all other paths are forwarded, so
    that every front gives the same answer."""

    def __init__(self, front: ApiFront, dispatcher: RemoteDispatcher, tell_counts: Callable[[], None]) -> None:
        self._front = front
        self._dispatcher = dispatcher
        self._tell_counts = tell_counts
        self._live = FrontLive(dispatcher)

    async def __call__(self, request: Request, exchange: ApiExchange) -> None:
        if request.path in OWN_PATHS or request.path.startswith(OWN_ITEMS):
            await self._front(request, exchange)
            return
        exchange.request_id = self._front.request_id_of(request)
        if request.path == LIVE_PATH and request.method in ("GET", "HEAD"):
            await self._live(request, exchange)
            return
        if request.method not in SAFE_METHODS:
            exchange.refuse_if_repeated()
        self._tell_counts()  # sent before the request, so that a page includes all that its reader has seen
        answer = await self._dispatcher.ask(request, exchange.request_id)
        exchange.respond(answer.status, answer.body, answer.content_type, answer.headers)


def main() -> None:
    # The terminal sends Ctrl-C to all; the dispatcher's process decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link_fd, counts_fd, cell, slot = map(int, sys.argv[1:])
    log_to_stderr("router")
    link, connections = socket.socket(fileno=link_fd), SharedConnectionCount(counts_fd, cell)

    async def run() -> None:
        await FrontProcess(link, connections, slot).run()

    try:
        uvloop.run(run())
    except (OSError, ValueError) as error:
        log.error("a front cannot serve: %s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
