"""The router process: dispatchers, worker port and HTTP front on one event loop, or with fronts in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from slipstream.router.access.access import Access
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.catalog.catalog import Catalog, NameTakenError, UnknownNameError
from slipstream.router.catalog.model_text import ModelText, read_model, served_by
from slipstream.router.catalog.served_model import ModelSource, ServedModel
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.router_config import DispatchConfig, RouterConfig, TlsConfig
from slipstream.router.dispatch.page_limits import PageLimits
from slipstream.router.dispatch.readiness import ClusterReadiness, ModelReadiness
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.frontends.front import Front
from slipstream.router.frontends.front_link import FrontLink
from slipstream.router.frontends.front_messages import DispatcherMessage
from slipstream.router.frontends.front_pool import FrontPool
from slipstream.router.frontends.front_setup import FrontModel, FrontSetup, LogStyle
from slipstream.router.frontends.tally import FrontTally
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.server import BACKLOG, LAST_WORDS_S, HttpServer
from slipstream.router.model_files.text_copy import keep_text
from slipstream.router.observability.tracing.begin import begin_tracing
from slipstream.router.process.addresses import Addresses, Endpoint
from slipstream.router.process.listening import listening_at_path, remove_path
from slipstream.router.process.open_files import allow_all_files
from slipstream.router.protocol.generation import SHUTTING_DOWN
from slipstream.router.protocol.model_id import ModelId
from slipstream.router.registry.expected_workers import ExpectedWorkers
from slipstream.router.text.encoding import encode_pool
from slipstream.router.text.unknown_tokens import warning_about

log = logging.getLogger(__name__)


class Router:
    """Life cycle: `start`, `leave` and `drain` (optional), `stop`, all on the event loop that `start` ran on. It serves
    `models`, at least one at the start; others may be added and removed.

    The workers say how long sequences may be. `worker_token` is the secret that workers must present. With a socket
    holder at `holder_path`, the router leaves its clients' connections to the next router, and `take_over` continues
    those of the previous one. A router that `is_ending` continues them and takes no new clients: the previous one was
    killed while it drained. `kv_budget_bytes` is the memory of each host that its workers divide for their KV pages.
    """

    def __init__(
        self,
        config: RouterConfig,
        models: Sequence[ModelSource],
        worker_token: str,
        *,
        holder_path: Path | None = None,
        is_ending: bool = False,
        kv_budget_bytes: int | None = None,
    ) -> None:
        if not models:
            raise ValueError("a router needs at least one model")
        self._config = config
        self._sources = {source.name: source for source in models if not source.text_of}
        self._text_sources = {source.key: source for source in models if source.text_of}  # of versions
        if len(self._sources) + len(self._text_sources) != len(models):
            raise ValueError(f"models need different names, got {', '.join(source.key for source in models)}")
        self._worker_token = worker_token
        self._holder_path = holder_path
        self._kv_budget_bytes = kv_budget_bytes
        self._expected = {source.name: expected_at_start(source) for source in models}
        self._texts: dict[str, ModelText] = {}
        self._readiness = ClusterReadiness()
        self._canaries: dict[str, asyncio.Task[None]] = {}
        self._pool: ThreadPoolExecutor
        self._cleanup = AsyncExitStack()
        self._is_leaving = False
        self._is_draining = is_ending
        self.service: GenerationService
        self._server: HttpServer[ExchangeContext] | FrontPool
        self.front: Front

    async def start(self) -> Addresses:
        """Listen for clients and workers. Returns the addresses, including ports that the system has chosen.

        Raises FileNotFoundError, TokenizerError or GenerationConfigError if the model directory cannot be used,
        FilesChanged (a ValueError) if its files are those of another version and there is no copy of the right ones,
        ValueError if the key file or a certificate is broken, and OSError if it cannot listen or cannot open a file;
        then nothing is left running.
        """
        async with AsyncExitStack() as cleanup:
            pool = self._pool = cleanup.enter_context(encode_pool())
            loop = asyncio.get_running_loop()
            for name, source in self._sources.items():
                self._texts[name] = await self._read(source)
            dispatch = {name: self._dispatch_of(source) for name, source in self._sources.items()}
            self.service = GenerationService(self._config, models=dispatch, token=self._worker_token)
            for name, source in self._sources.items():
                self.service.set_weight(name, source.weight)
                self._readiness.add(name, ModelReadiness(self.service, name, self._expected[name]), is_needed=True)
            allow_all_files()
            failover = await loop.run_in_executor(pool, self._find_session)
            if failover is not None:
                cleanup.callback(failover.close)  # if the start fails; else the server has done it by then
            access = open_access(self._config.access, cleanup)  # not before: the previous router counts until it ends
            self.front = Front(
                Catalog.of(map(self._served, self._sources)),
                self.service,
                self._unready_because,
                lambda: self._server.num_connections,
                self._config,
                access,
                begin_tracing(self._config.tracing, self._only_at_start, cleanup),
            )
            for source in self._text_sources.values():
                self._texts[source.key] = text = await self._read(source)
                self.front.catalog.add_text(source.text_of, served_by(source, text))
            if failover is not None and failover.listening:
                # Accept the previous router's clients even before it is known which workers will come.
                for name in self._sources:
                    longest = self._texts[name].max_positions
                    if longest is not None:
                        self.service.expect_max_model_len(name, longest)
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
            for source in (*self._sources.values(), *self._text_sources.values()):
                await loop.run_in_executor(pool, keep_text, source.directory, source.manifests)
            self._begin_tasks(cleanup)
            self._cleanup = cleanup.pop_all()
        http = Endpoint(self._config.http.host, http_port)
        return Addresses(http, Endpoint(*self.service.worker_port.address), admin_at)

    @property
    def _only_at_start(self) -> str:
        return next(iter(self._sources)) if len(self._sources) == 1 else ""

    async def add_model(self, source: ModelSource) -> None:
        """Serves another model from now on, in all front processes; the others are not affected. Raises NameTakenError
        (a ValueError), ValueError if a front process cannot read it, and what `start` raises if its directory cannot be
        used; then nothing has changed."""
        if source.name in self._sources:
            raise NameTakenError(source.name, source.name)
        names = (source.name, *source.aliases)
        self.front.catalog.check_free(names)
        self._sources[source.name] = source
        fronts = self._front_pool
        try:
            text = await self._read(source)
            await asyncio.to_thread(keep_text, source.directory, source.manifests)
            if fronts is not None:
                await fronts.load_model(FrontModel(source, text.defaults))
            self.front.catalog.check_free(names)  # one may have been taken meanwhile
            self.service.add_model(source.name, self._dispatch_of(source))
            self.service.set_weight(source.name, source.weight)
        except BaseException:
            del self._sources[source.name]
            if fronts is not None:
                fronts.remove_model(source.name)
            raise
        self._texts[source.name] = text
        self.front.add_model(self._served(source.name))
        if fronts is not None:
            fronts.serve_model(self._front_model(source.name))
        expected = self._expected.setdefault(source.name, expected_at_start(source))
        self._readiness.add(source.name, ModelReadiness(self.service, source.name, expected), is_needed=False)
        self._expect(source.name, expected)
        self._begin_canary(source.name)

    async def remove_model(self, name: str, deadline_s: float | None = None) -> None:
        """Drains a model: new requests get a 404, those that wait or run end first, then its workers are drained. After
        `deadline_s` seconds (None: never) the rest ends by an error. Raises UnknownNameError."""
        self.front.catalog.entry(name).is_leaving = True
        fronts = self._front_pool
        if fronts is not None:
            fronts.model_leaves(name)
        await self.service.remove_model(name, deadline_s)
        for source in [one for one in self._text_sources.values() if one.name == name]:
            self.remove_text(name, source.text_of)
        self.front.remove_model(name)
        if fronts is not None:
            fronts.remove_model(name)
        self._sources.pop(name, None)
        self._texts.pop(name, None)
        self._readiness.remove(name)
        self._expected.pop(name, None)
        canary = self._canaries.pop(name, None)
        if canary is not None:
            await cancel_and_wait(canary)

    async def add_text(self, source: ModelSource) -> None:
        """From now on a version has a text of its own, in all front processes: tokenizer, chat template and defaults
        that are others than those of its model. Raises UnknownNameError, and what `start` raises if its directory
        cannot be used; then nothing has changed."""
        self.front.catalog.entry(source.name)
        fronts = self._front_pool
        text = await self._read(source)
        await asyncio.to_thread(keep_text, source.directory, source.manifests)
        if fronts is not None:
            await fronts.load_model(FrontModel(source, text.defaults))
        self.front.catalog.entry(source.name)  # it may have been removed meanwhile
        self._text_sources[source.key], self._texts[source.key] = source, text
        self.front.catalog.add_text(source.text_of, served_by(source, text))
        if fronts is not None:
            fronts.serve_model(FrontModel(source, text.defaults))

    def remove_text(self, name: str, version: str) -> None:
        """The version is not served any more, or its text has become that of its model. Unknown ones are ignored."""
        key = str(ModelId(name, version))
        if self._text_sources.pop(key, None) is not None:
            del self._texts[key]
            self.front.catalog.remove_text(name, version)
            if self._front_pool is not None:
                self._front_pool.remove_model(key)

    async def set_text(self, source: ModelSource) -> None:
        """Gives a model another text, which all versions have that have none of their own. Raises what `add_text`
        raises."""
        before = self._sources.get(source.name)
        if before is None:
            raise UnknownNameError(source.name)
        now = replace(before, directory=source.directory, manifests=source.manifests)
        now = replace(now, generation_config=source.generation_config, content_format=source.content_format)
        text = await self._read(now)
        await asyncio.to_thread(keep_text, now.directory, now.manifests)
        if self._front_pool is not None:
            await self._front_pool.load_model(FrontModel(now, text.defaults))
        if source.name not in self._sources:  # removed meanwhile
            raise UnknownNameError(source.name)
        now = replace(now, aliases=self._sources[source.name].aliases)
        self._sources[source.name], self._texts[source.name] = now, text
        self.front.catalog.set_text(served_by(now, text))
        if self._front_pool is not None:
            self._front_pool.serve_model(self._front_model(source.name))

    def set_aliases(self, name: str, aliases: Sequence[str]) -> None:
        """Gives a model these aliases and no others, in all front processes; one that another model has moves to this
        one. Raises UnknownNameError, NameTakenError; then nothing has changed."""
        self.front.catalog.set_aliases(name, aliases)
        for entry in self.front.catalog:
            model = entry.model
            self._sources[model.name] = replace(self._sources[model.name], aliases=model.aliases)
        if self._front_pool is not None:
            self._front_pool.set_aliases(name, self._sources[name].aliases)

    @property
    def _front_pool(self) -> FrontPool | None:
        return self._server if isinstance(self._server, FrontPool) else None

    async def _read(self, source: ModelSource) -> ModelText:
        """Reads what the HTTP side needs of a model, without holding up the event loop. Raises ValueError, OSError."""
        # Not in the pool: while a large tokenizer is read there, the prompts of other models would wait.
        text = await asyncio.to_thread(read_model, source, self._pool)
        if text.tokenizer.unknown_to_model:
            log.warning("%s", warning_about(text.tokenizer.unknown_to_model, text.tokenizer.vocab_size))
        if text.defaults.recommended:
            log.info("defaults of requests by generation_config.json: %s", text.defaults.recommended)
        return text

    def _dispatch_of(self, source: ModelSource) -> DispatchConfig:
        return source.dispatch if source.dispatch is not None else self._config.dispatch

    def _served(self, name: str) -> ServedModel:
        return served_by(self._sources[name], self._texts[name])

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
        cleanup.push_async_callback(cancel_and_wait, limits_of_pages)
        cleanup.push_async_callback(self._end_canaries)
        for name in self._sources:
            self._begin_canary(name)

    def _begin_canary(self, name: str) -> None:
        canary = self._canaries[name] = asyncio.create_task(self._readiness[name].canary.run())
        canary.add_done_callback(partial(log_failure, name))

    async def _end_canaries(self) -> None:
        for canary in self._canaries.values():
            await cancel_and_wait(canary)

    def _serving(
        self, front: Front, access: Access, failover: FailoverSession | None, unix_socket: socket.socket | None
    ) -> HttpServer[ExchangeContext] | FrontPool:
        """What clients connect to: a server in this process, or a pool of front processes."""
        if self._config.frontends == 1:
            new_server = HttpServer if failover is None else partial(FailoverServer, failover=failover)
            http, check_caller = self._config.http, front.check_caller
            return new_server(http, front, ExchangeContext, check_caller=check_caller, unix_socket=unix_socket)
        log_style = LogStyle.of_this_process()
        holder_path = self._holder_path if failover is not None else None
        models = {name: self._front_model(name) for name in self._sources}
        models |= {key: FrontModel(source, self._texts[key].defaults) for key, source in self._text_sources.items()}
        setup = FrontSetup(self._config, models, log_style, holder_path=holder_path)

        def link_of(send: Callable[[DispatcherMessage], None]) -> FrontLink:
            tally = FrontTally(front.counts, access.keys.num_unauthenticated, front.trace_counts)
            is_kept = holder_path is not None and not self._config.http.tls.is_on
            return FrontLink(self.service, access, tally, front, send, clients_outlive_it=is_kept)

        return FrontPool(self._config.frontends, setup, link_of, failover, unix_socket)

    def _front_model(self, name: str) -> FrontModel:
        """A model as the fronts are to serve it."""
        source, defaults = self._sources[name], self._texts[name].defaults
        longest, versions = self.service.max_model_len_of(name), self.service.versions_of(name)
        shares = tuple(self.service.shares_of(name).items())
        return FrontModel(source, defaults, longest, versions, self.front.catalog.entry(name).is_leaving, shares)

    async def _send_limits(self, fronts: FrontPool) -> None:
        while True:
            self._send_limits_now(fronts)
            await self.service.worker_port.wait_for_change()

    def _send_limits_now(self, fronts: FrontPool) -> None:
        for name in self.service.models:
            shares = tuple(self.service.shares_of(name).items())
            fronts.send_limits(name, self.service.max_model_len_of(name), self.service.versions_of(name), shares)

    async def take_over(self) -> None:
        """Continue the connections that the previous router left behind. To be called once the expected workers are
        known."""
        if isinstance(self._server, FrontPool):
            self._send_limits_now(self._server)
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

    def expect_workers(self, expected: Mapping[str, ExpectedWorkers]) -> None:
        """Sets how many workers are wanted of each of these models; that of a model to come counts once it is added.
        Until the first decode worker connects, requests are accepted and wait (also at a restarted router). If no
        decode worker is wanted, the model counts as ready until one has connected."""
        for name, workers in expected.items():
            self._expected[name] = workers
            if name in self._readiness:
                self._expect(name, workers)

    def _expect(self, name: str, expected: ExpectedWorkers) -> None:
        self.service.refuse_without_workers(name, expected.hindrance)
        longest = expected.max_model_len or self._texts[name].max_positions
        if longest is not None:
            self.service.expect_max_model_len(name, longest)
        self._readiness[name].expect(expected)
        self.front.catalog.entry(name).wants_workers = expected.num_decode > 0

    async def stop(self) -> None:
        """End the requests that still run (streams get an error event) and close everything. Safe to call twice."""
        if not self._is_draining:
            await self.drain(0)
        await self.service.close()
        await self._server.drain(LAST_WORDS_S)
        await self._cleanup.aclose()

    def _unready_because(self, model: str = "") -> str | None:
        if self._is_leaving or self._is_draining:
            return SHUTTING_DOWN.message
        return self._readiness[model].unready_because() if model else self._readiness.unready_because()


def expected_at_start(source: ModelSource) -> ExpectedWorkers:
    """Until a supervisor says more."""
    return ExpectedWorkers(num_prefill=int(source.has_prefill_pool))


def open_access(config: AccessConfig, cleanup: AsyncExitStack) -> Access:
    """Reads the keys and the usage so far; `cleanup` saves the usage. Raises ValueError, OSError."""
    files = cleanup.enter_context(ThreadPoolExecutor(1, thread_name_prefix="access"))
    access = Access(config, files)
    access.open()
    cleanup.push_async_callback(access.close)
    return access


def log_failure(name: str, task: asyncio.Task[None]) -> None:
    """Log the exception of a task. Without this, the log would not say why the router never becomes ready."""
    if not task.cancelled() and (error := task.exception()) is not None:
        message = "the request that proves readiness of model %r ended with a bug: it stays unready"
        log.error(message, name, exc_info=error)


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. If it had failed before, its exception is raised."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
