"""The router process: dispatchers, worker port and HTTP front on one event loop, or with fronts in other processes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from slipstream.router.access.access import Access
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import RouterConfig, TlsConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.dispatch.page_limits import PageLimits
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.front.front import Front
from slipstream.router.frontends.front_limits import FrontLimits
from slipstream.router.frontends.front_link import FrontLink
from slipstream.router.frontends.front_messages import DispatcherMessage
from slipstream.router.frontends.front_pool import FrontPool
from slipstream.router.frontends.front_setup import FrontSetup, LogStyle
from slipstream.router.frontends.tally import FrontTally
from slipstream.router.http.failover.failover_server import FailoverServer
from slipstream.router.http.failover.failover_session import FailoverSession
from slipstream.router.http.server import BACKLOG, LAST_WORDS_S, HttpServer
from slipstream.router.observability.certificate_metrics import CertificateHolder, certificate_family
from slipstream.router.observability.tracing.begin import begin_tracing
from slipstream.router.process.addresses import Addresses, Endpoint, RepositoryAddresses
from slipstream.router.process.background_task import cancel_and_wait
from slipstream.router.process.grpc_tuning import spare_grpc_threads
from slipstream.router.process.listening import listening_at_path, remove_path
from slipstream.router.process.open_files import allow_all_files
from slipstream.router.protocol.generation import SHUTTING_DOWN
from slipstream.router.router_models import RouterModels
from slipstream.router.status.instances_status import InstancesStatus
from slipstream.router.status.repository_status import LOADING
from slipstream.router.status.tensor_signals import TensorSignals
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus
from slipstream.router.status.wanted_models import WantedList, WantedModel
from slipstream.router.text.encoding import encode_pool

if TYPE_CHECKING:
    from slipstream.router.tensor_models import TensorModels

log = logging.getLogger(__name__)

T = TypeVar("T")


class Router:
    """Life cycle: `start`, `leave` and `drain` (optional), `stop`, all on the event loop that `start` ran on. It serves
    `models` and the tensor models of `repository`, one of which may be empty; `Router.models` adds and removes models.

    The workers say how long sequences may be. `worker_token` is the secret that workers must present. With a socket
    holder at `holder_path`, the router leaves its clients' connections to the next router, and `take_over` continues
    those of the previous one. A router that `is_ending` continues them and takes no new clients: the previous one was
    killed while it drained. `kv_budget_bytes` is the memory of each host that its workers divide for their KV pages. At
    `instances_path` the router listens for the instances on its host.
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
        repository: RepositoryConfig | None = None,
        instances_path: Path | None = None,
    ) -> None:
        self._config = config
        self._instances_path = instances_path
        self._repository = RepositoryConfig() if repository is None else repository
        if not models and not self._repository.is_on:
            raise ValueError("a router needs at least one model, or a repository")
        if self._repository.is_on and config.frontends > 1:
            raise ValueError(f"frontends must be 1 where there is a repository, got {config.frontends}")
        self.models = RouterModels(models, config.dispatch)
        self._worker_token = worker_token
        self._holder_path = holder_path
        self._kv_budget_bytes = kv_budget_bytes
        self._cleanup = AsyncExitStack()
        self._is_leaving = False
        self._is_draining = is_ending
        self.service: GenerationService
        self._server: HttpServer[ExchangeContext] | FrontPool
        self.front: Front
        self.tensors: TensorModels | None = None

    async def start(self, *, is_embedded: bool = False) -> Addresses:
        """Listen for clients and workers. Returns the addresses, including ports that the system has chosen. A router
        that `is_embedded` in another program listens for no clients, and leaves the limits of the process as they are.

        Raises FileNotFoundError, TokenizerError or GenerationConfigError if the model directory cannot be used,
        FilesChanged (a ValueError) if its files are those of another version and there is no copy of the right ones,
        ValueError if the key file or a certificate is broken, and OSError if it cannot listen or cannot open a file;
        then nothing is left running.
        """
        async with AsyncExitStack() as cleanup:
            pool = cleanup.enter_context(encode_pool(self._config.api.prompt_memory_bytes))
            await self.models.read(pool)
            self.service = self._generation_service()
            if not is_embedded:
                allow_all_files()
                spare_grpc_threads()
            failover = await asyncio.get_running_loop().run_in_executor(pool, self._find_session)
            if failover is not None:
                cleanup.callback(failover.close)  # if the start fails; else the server has done it by then
            access = open_access(self._config.access, cleanup)  # not before: the previous router counts until it ends
            self.front = self._open_front(access, cleanup)
            if failover is not None and failover.listening:
                # Accept the previous router's clients even before it is known which workers will come.
                for name, longest in self.models.max_positions.items():
                    self.service.expect_max_model_len(name, longest)
            repository_at = await self._serve_repository(access, cleanup)
            self._server = self._open_server(access, failover, cleanup)
            if self._is_draining:
                self._end_listening_at_path()
                self.service.stop_admission()
                self._server.refuse_clients()
            await self._start_service(failover, cleanup)
            cleanup.push_async_callback(self._server.stop)  # before `start`, which may fail after some of the fronts
            http_port = self._config.http.port if is_embedded else await self._server.start()
            self.front.add_metrics(lambda: (certificate_family(self._certificates()),))
            admin_at = await self._start_admin(self.front, cleanup)
            await self.models.keep_texts()
            self._begin_tasks(cleanup)
            self._cleanup = cleanup.pop_all()
        http = Endpoint(self._config.http.host, http_port)
        return Addresses(http, Endpoint(*self.service.worker_port.address), admin_at, repository_at)

    async def wait_loaded(self) -> None:
        """Until the models of the repository's start have been tried; at once without a repository. Raises InferError
        if one of them could not be loaded, and that is to end the router."""
        if self.tensors is not None:
            await self.tensors.wait_loaded()

    async def wanted_models(self, known: WantedList | None) -> WantedList:
        """The language models that the repository names, once they are others than those that are known; never without
        a repository."""
        if self.tensors is None:
            await asyncio.Event().wait()
        assert self.tensors is not None
        return await self.tensors.wanted.other_than(known)

    def wanted_model_failed(self, model: WantedModel, reason: str) -> None:
        """The cluster has given up to serve a language model that the repository names."""
        if self.tensors is not None:
            self.tensors.wanted.fail(model, reason)

    def wanted_model_served(self, model: WantedModel) -> None:
        """The cluster serves a language model as the repository names it."""
        if self.tensors is not None:
            self.tensors.wanted.serve(model)

    def set_tensor_versions(self, model: str, config: TensorVersionsConfig) -> None:
        """How the requests to a model of the repository are divided between its versions from now on."""
        if self.tensors is not None:
            self.tensors.service.set_versions(model, config)

    def tensor_versions(self, model: str) -> TensorVersionsStatus | None:
        """How the versions of a model of the repository do; None if there is no such model."""
        return None if self.tensors is None else self.tensors.service.versions_status(model)

    def set_instance_counts(self, model: str, config: InstanceCountsConfig) -> None:
        """How many instances a model of the repository has from now on."""
        if self.tensors is not None:
            self.tensors.scaling.set_counts(model, config)

    def instances_status(self, model: str) -> list[InstancesStatus]:
        """How many instances the versions of a model of the repository have."""
        return [] if self.tensors is None else self.tensors.scaling.status(model)

    def tensor_signals(self) -> list[TensorSignals]:
        """The load of the instances of all models: what a planner decides from."""
        return [] if self.tensors is None else self.tensors.scaling.signals()

    def resize_instances(self, model: str, version: str, count: int, reason: str) -> None:
        """A planner says how many instances a version has."""
        if self.tensors is not None:
            self.tensors.scaling.resize(model, version, count, reason)

    async def serve_until(self, stopped: Awaitable[T]) -> T:
        """The result of `stopped`. Raises what `wait_loaded` raises, if that comes first."""
        waiting, loading = asyncio.ensure_future(stopped), asyncio.ensure_future(self.wait_loaded())
        try:
            await asyncio.wait([waiting, loading], return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
            return await waiting
        finally:
            waiting.cancel()
            loading.cancel()

    def _generation_service(self) -> GenerationService:
        service = GenerationService(self._config, models=self.models.dispatch_configs, token=self._worker_token)
        self.models.serve_in(service)
        return service

    async def _start_service(self, failover: FailoverSession | None, cleanup: AsyncExitStack) -> None:
        """Listens for workers. Raises OSError."""
        sockets = await self.service.start(failover.for_workers if failover is not None else ())
        if failover is not None:
            failover.keep_listening(sockets, for_workers=True)
        cleanup.push_async_callback(self.service.close)

    def _open_front(self, access: Access, cleanup: AsyncExitStack) -> Front:
        front = Front(
            self.models.catalog(),
            self.service,
            self._unready_because,
            lambda: self._server.num_connections,
            self._config,
            access,
            begin_tracing(self._config.tracing, self.models.single, cleanup),
        )
        self.models.serve_by(front)
        front.open(cleanup)
        return front

    async def _serve_repository(self, access: Access, cleanup: AsyncExitStack) -> RepositoryAddresses | None:
        """Serves the tensor models, if there is a repository. Raises OSError."""
        if not self._repository.is_on:
            return None
        from slipstream.router.tensor_models import TensorModels  # and with it protobuf, which others need not have

        self.tensors = TensorModels(
            self._repository, self._config, self._worker_token, self._instances_path, self.models
        )
        addresses = await self.tensors.start(self.front, self.service, access, cleanup)
        self.front.show_repository(self.tensors.status)
        return addresses

    def _certificates(self) -> dict[str, CertificateHolder | None]:
        """By port."""
        of_tensors = self.tensors.certificates if self.tensors is not None else {}
        return {"http": self._server.tls, "workers": self.service.worker_port.tls, **of_tensors}

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
            limits = asyncio.create_task(FrontLimits(self.service, self._server).run())
            cleanup.push_async_callback(cancel_and_wait, limits)
        limits_of_pages = asyncio.create_task(PageLimits(self._kv_budget_bytes, [self.service]).run())
        cleanup.push_async_callback(cancel_and_wait, limits_of_pages)
        cleanup.push_async_callback(self.models.end_probes)
        self.models.begin_probes()

    def _open_server(
        self, access: Access, failover: FailoverSession | None, cleanup: AsyncExitStack
    ) -> HttpServer[ExchangeContext] | FrontPool:
        """What clients connect to: a server in this process, or a pool of front processes. It does not listen yet, but
        for a Unix socket. Raises OSError."""
        unix_socket = self._listen_at_path(failover)
        if unix_socket is not None:
            cleanup.callback(unix_socket.close)
        if self._config.frontends == 1:
            front = self.front
            new_server = HttpServer if failover is None else partial(FailoverServer, failover=failover)
            return new_server(
                self._config.http,
                front,
                ExchangeContext,
                check_caller=front.check_caller,
                error_form_of=front.error_form_of,
                unix_socket=unix_socket,
                body_places=front.body_places,
            )
        pool = self._front_pool(access, failover, unix_socket)
        self.models.serve_by_fronts(pool)
        return pool

    def _front_pool(
        self, access: Access, failover: FailoverSession | None, unix_socket: socket.socket | None
    ) -> FrontPool:
        front, log_style = self.front, LogStyle.of_this_process()
        holder_path = self._holder_path if failover is not None else None
        setup = FrontSetup(self._config, self.models.front_models(), log_style, holder_path=holder_path)

        def link_of(send: Callable[[DispatcherMessage], None]) -> FrontLink:
            tally = FrontTally(front.counts, access.keys.num_unauthenticated, front.trace_counts)
            is_kept = holder_path is not None and not self._config.http.tls.is_on
            return FrontLink(self.service, access, tally, front, send, clients_outlive_it=is_kept)

        return FrontPool(self._config.frontends, setup, link_of, failover, unix_socket)

    async def take_over(self) -> None:
        """Continue the connections that the previous router left behind. To be called once the expected workers are
        known."""
        if isinstance(self._server, FrontPool):
            FrontLimits(self.service, self._server).send()
        if isinstance(self._server, FrontPool | FailoverServer):
            await self._server.take_over()

    def leave(self) -> None:
        """Be unready from now on, so that load balancers send their requests elsewhere. Those that still come are
        served, and their connections closed after the answer."""
        self._is_leaving = True
        if self.tensors is not None:
            self.tensors.leave()
        self._server.leave()

    async def drain(self, deadline_s: float) -> None:
        """Accept no new requests and let running answers end, for at most `deadline_s` seconds."""
        self._is_draining = True
        self.service.stop_admission()
        if self.tensors is not None:
            self.tensors.stop_admission()
        self._end_listening_at_path()
        if self.tensors is None:
            await self._server.drain(deadline_s)
        else:
            await asyncio.gather(self._server.drain(deadline_s), self.tensors.drain(deadline_s))

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
        if model:
            return self.models.readiness[model].unready_because()
        if self.tensors is not None and not self.tensors.has_loaded:
            return LOADING
        return self.models.readiness.unready_because()


def open_access(config: AccessConfig, cleanup: AsyncExitStack) -> Access:
    """Reads the keys and the usage so far; `cleanup` saves the usage. Raises ValueError, OSError."""
    files = cleanup.enter_context(ThreadPoolExecutor(1, thread_name_prefix="access"))
    access = Access(config, files)
    access.open()
    cleanup.push_async_callback(access.close)
    return access
