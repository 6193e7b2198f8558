"""The router process: dispatcher, worker port and HTTP front on one event loop, or with fronts in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from slipstream.router.access.access import Access
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.catalog.served_model import ModelSource, ServedModel
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.router_config import RouterConfig, TlsConfig
from slipstream.router.dispatch.canary import Canary
from slipstream.router.dispatch.page_limits import PageLimits
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.frontends.front import Front
from slipstream.router.frontends.front_link import FrontLink
from slipstream.router.frontends.front_messages import DispatcherMessage
from slipstream.router.frontends.front_pool import FrontPool
from slipstream.router.frontends.front_setup import FrontSetup, LogStyle
from slipstream.router.frontends.tally import FrontTally
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.server import BACKLOG, LAST_WORDS_S, HttpServer
from slipstream.router.model_files.sampling_defaults import SamplingDefaults
from slipstream.router.model_files.text_copy import keep_text, read_text
from slipstream.router.observability.tracing.begin import begin_tracing
from slipstream.router.process.addresses import Addresses, Endpoint
from slipstream.router.process.listening import listening_at_path, remove_path
from slipstream.router.process.open_files import allow_all_files
from slipstream.router.protocol.generation import SHUTTING_DOWN
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.text.encoding import encode_pool
from slipstream.router.text.tokenizer import Tokenizer
from slipstream.router.text.tokenizer_files import read_json
from slipstream.router.text.unknown_tokens import warning_about

log = logging.getLogger(__name__)


class Router:
    """Life cycle: `start`, `leave` and `drain` (optional), `stop`, all on the event loop that `start` ran on.

    The workers say how long sequences may be. `worker_token` is the secret that workers must present. With
    `has_prefill_pool` the router is ready only after a request has gone through a prefill group; without it, that first
    request uses a prefill group if there is one. With a socket holder at `holder_path`, the router leaves its clients'
    connections to the next router, and `take_over` continues those of the previous one. A router that `is_ending`
    continues them and takes no new clients: the previous one was killed while it drained. `kv_budget_bytes` is the
    memory of each host that its workers divide for their KV pages.
    """

    def __init__(
        self,
        config: RouterConfig,
        model: ModelSource,
        worker_token: str,
        *,
        has_prefill_pool: bool = False,
        holder_path: Path | None = None,
        is_ending: bool = False,
        kv_budget_bytes: int | None = None,
    ) -> None:
        self._config = config
        self._model = model
        self._worker_token = worker_token
        self._holder_path = holder_path
        self._kv_budget_bytes = kv_budget_bytes
        self._defaults = SamplingDefaults()
        self._expected = ExpectedWorkers(num_prefill=int(has_prefill_pool))
        self._asleep_since: int | None = None  # `num_decode_joins` when it fell asleep
        self._model_positions: int | None = None  # the longest sequence that the model allows, if its config says so
        self._cleanup = AsyncExitStack()
        self._is_leaving = False
        self._is_draining = is_ending
        self.service: GenerationService
        self._server: HttpServer[ExchangeContext] | FrontPool
        self._canary: Canary
        self.front: Front

    async def start(self) -> Addresses:
        """Listen for clients and workers. Returns the addresses, including ports that the system has chosen.

        Raises FileNotFoundError, TokenizerError or GenerationConfigError if the model directory cannot be used,
        FilesChanged (a ValueError) if its files are those of another version and there is no copy of the right ones,
        ValueError if the key file or a certificate is broken, and OSError if it cannot listen or cannot open a file;
        then nothing is left running.
        """
        async with AsyncExitStack() as cleanup:
            pool = cleanup.enter_context(encode_pool())
            loop = asyncio.get_running_loop()
            tokenizer, self._model_positions, self._defaults = await loop.run_in_executor(pool, self._read_model, pool)
            if tokenizer.unknown_to_model:
                log.warning("%s", warning_about(tokenizer.unknown_to_model, tokenizer.vocab_size))
            if self._defaults.recommended:
                log.info("defaults of requests by generation_config.json: %s", self._defaults.recommended)
            self.service = GenerationService(self._config, model=self._model.name, token=self._worker_token)
            self._canary = Canary(self.service, self._needs_prefill_group)
            allow_all_files()
            failover = await loop.run_in_executor(pool, self._find_session)
            if failover is not None:
                cleanup.callback(failover.close)  # if the start fails; else the server has done it by then
            access = open_access(self._config.access, cleanup)  # not before: the previous router counts until it ends
            self.front = Front(
                ServedModel(self._model.name, tokenizer, self._defaults),
                self.service,
                self._unready_because,
                lambda: self._server.num_connections,
                self._config,
                access,
                begin_tracing(self._config.tracing, self._model.name, cleanup),
            )
            if failover is not None and failover.listening and self._model_positions is not None:
                # Accept the previous router's clients even before it is known which workers will come.
                self.service.expect_max_model_len(self._model_positions)
            unix_socket = self._listen_at_path(failover)
            if unix_socket is not None:
                cleanup.callback(unix_socket.close)
            self._server = self._serving(self.front, access, failover, unix_socket)
            if self._is_draining:
                self._end_listening_at_path()
                self.service.stop_admission()
                self._server.refuse_clients()
            sockets = await self.service.start(failover.for_workers if failover is not None else ())
            if failover is not None:
                failover.keep_listening(sockets, for_workers=True)
            cleanup.push_async_callback(self.service.close)
            cleanup.push_async_callback(self._server.stop)  # before `start`, which may fail after some of the fronts
            http_port = await self._server.start()
            admin_at = await self._start_admin(self.front, cleanup)
            await loop.run_in_executor(pool, keep_text, self._model.directory, self._model.manifests)
            self._begin_tasks(cleanup)
            self._cleanup = cleanup.pop_all()
        http = Endpoint(self._config.http.host, http_port)
        return Addresses(http, Endpoint(*self.service.worker_port.address), admin_at)

    def _read_model(self, pool: ThreadPoolExecutor) -> tuple[Tokenizer, int | None, SamplingDefaults]:
        """The tokenizer, how long sequences may be, the defaults of requests. Blocks. Raises ValueError or OSError."""

        def read(folder: Path) -> tuple[Tokenizer, int | None, SamplingDefaults]:
            tokenizer = Tokenizer.from_directory(folder, pool, self._model.content_format)
            return tokenizer, model_positions(folder), SamplingDefaults.read(folder, self._model.generation_config)

        return read_text(self._model.directory, self._model.manifests, read)

    def _find_session(self) -> FailoverSession | None:
        """The session with the previous router's clients; None without a socket holder. Blocks."""
        return (
            None
            if self._holder_path is None
            else FailoverSession.of_holder(self._holder_path, num_fronts=self._config.frontends)
        )

    def _listen_at_path(self, failover: FailoverSession | None) -> socket.socket | None:
        """The Unix socket for clients, that of the previous router if it has left it. Raises OSError."""
        path = self._config.http.unix_socket
        if path is None:
            return None
        if failover is not None:
            restored = failover.take_unix_socket()
            if restored is not None:
                return restored
        try:
            sock = listening_at_path(path, BACKLOG)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen for HTTP at {path}: {error.strerror or error}") from error
        if failover is not None:
            failover.keep_listening([sock])
        return sock

    def _end_listening_at_path(self) -> None:
        if self._config.http.unix_socket is not None:
            remove_path(self._config.http.unix_socket)

    async def _start_admin(self, front: Front, cleanup: AsyncExitStack) -> Endpoint | None:
        """The administrators' port, if there is one. Raises OSError if it cannot be had."""
        admin = self._config.admin
        if admin.port is None:
            return None
        http = replace(self._config.http, host=admin.host, port=admin.port, tls=TlsConfig(), cors_origins=())
        server = HttpServer(http, front.admin, ExchangeContext)
        port = await server.start()
        cleanup.push_async_callback(server.stop)
        return Endpoint(admin.host, port)

    def _begin_tasks(self, cleanup: AsyncExitStack) -> None:
        """Starts the background tasks, which run until the end."""
        if isinstance(self._server, FrontPool):
            limits = asyncio.create_task(self._send_limits(self._server))
            cleanup.push_async_callback(cancel_and_wait, limits)
        limits_of_pages = asyncio.create_task(PageLimits(self._kv_budget_bytes, [self.service]).run())
        limits_of_pages.add_done_callback(log_failure)
        cleanup.push_async_callback(cancel_and_wait, limits_of_pages)
        canary = asyncio.create_task(self._canary.run())
        canary.add_done_callback(log_failure)
        cleanup.push_async_callback(cancel_and_wait, canary)

    def _serving(
        self, front: Front, access: Access, failover: FailoverSession | None, unix_socket: socket.socket | None
    ) -> HttpServer[ExchangeContext] | FrontPool:
        """What clients connect to: a server in this process, or a pool of front processes."""
        if self._config.frontends == 1:
            new_server = HttpServer if failover is None else partial(FailoverServer, failover=failover)
            http, check_caller = self._config.http, front.check_caller
            return new_server(http, front, ExchangeContext, check_caller=check_caller, unix_socket=unix_socket)
        log_style = LogStyle.of_this_process()
        longest, holder_path = self.service.max_model_len, self._holder_path if failover is not None else None
        setup = FrontSetup(
            self._config,
            self._model,
            longest,
            log_style,
            holder_path=holder_path,
            defaults=self._defaults,
        )

        def link_of(send: Callable[[DispatcherMessage], None]) -> FrontLink:
            tally = FrontTally(front.counts, access.keys.num_unauthenticated, front.trace_counts)
            is_kept = holder_path is not None and not self._config.http.tls.is_on
            return FrontLink(self.service, access, tally, front, send, clients_outlive_it=is_kept)

        return FrontPool(self._config.frontends, setup, link_of, failover, unix_socket)

    async def _send_limits(self, fronts: FrontPool) -> None:
        while True:
            fronts.send_limits(self.service.max_model_len, self.service.versions)
            await self.service.worker_port.wait_for_change()

    async def take_over(self) -> None:
        """Continue the connections that the previous router left behind. To be called once the expected workers are
        known."""
        if isinstance(self._server, FrontPool):
            self._server.send_limits(self.service.max_model_len, self.service.versions)
        if isinstance(self._server, FrontPool | FailoverServer):
            await self._server.take_over()

    def leave(self) -> None:
        """Be unready from now on, so that load balancers send their requests elsewhere. Those that still come are
        served, and their connections closed after the answer."""
        self._is_leaving = True
        self._server.leave()

    async def drain(self, deadline_s: float) -> None:
        """Accept no new requests and let running answers end, for at most `deadline_s` seconds."""
        self._is_draining = True
        self.service.stop_admission()
        self._end_listening_at_path()
        await self._server.drain(deadline_s)

    def expect_workers(self, expected: ExpectedWorkers) -> None:
        """Sets how many workers are wanted. Until the first decode worker connects, requests are accepted and wait
        (also at a restarted router). If no decode worker is wanted, it counts as ready until one has connected."""
        self._expected = expected
        self.service.refuse_without_workers(expected.hindrance)
        longest = expected.max_model_len or self._model_positions
        if longest is not None:
            self.service.expect_max_model_len(longest)
        if expected.num_decode == 0:
            self._asleep_since = self.service.worker_port.num_decode_joins

    def _needs_prefill_group(self) -> bool:
        """Whether readiness requires a prefill group. Only until these workers have served their first answer: later, a
        prefill host that is cut off is no reason to reject clients."""
        return self._expected.num_prefill > 0 and not self._expected.has_served

    @property
    def _is_asleep(self) -> bool:
        return self._expected.num_decode == 0 or self._asleep_since == self.service.worker_port.num_decode_joins

    async def stop(self) -> None:
        """End the requests that still run (streams get an error event) and close everything. Safe to call twice."""
        if not self._is_draining:
            await self.drain(0)
        await self.service.close()
        await self._server.drain(LAST_WORDS_S)
        await self._cleanup.aclose()

    def _unready_because(self) -> str | None:
        if self._is_leaving or self._is_draining:
            return SHUTTING_DOWN.message
        if self._is_asleep:
            return None
        has_slept = self._asleep_since is not None  # then it stays ready while the canary tries the first worker out
        if self._canary.missing is not None and not has_slept:
            return self._canary.missing
        return None if self.service.is_ready else "no decode worker is connected"


def model_positions(model_dir: Path) -> int | None:
    """The longest sequence that a model allows, if its config.json says so. Raises ValueError if that is not valid
    JSON."""
    longest = read_json(model_dir / "config.json").get("max_position_embeddings")
    return longest if isinstance(longest, int) else None


def open_access(config: AccessConfig, cleanup: AsyncExitStack) -> Access:
    """Reads the keys and the usage so far; `cleanup` saves the usage. Raises ValueError, OSError."""
    files = cleanup.enter_context(ThreadPoolExecutor(1, thread_name_prefix="access"))
    access = Access(config, files)
    access.open()
    cleanup.push_async_callback(access.close)
    return access


def log_failure(task: asyncio.Task[None]) -> None:
    """Log the exception of a task. Without this, the log would not say why the router never becomes ready."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the request that proves readiness ended with a bug: the router stays unready", exc_info=error)


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. If it had failed before, its exception is raised."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
