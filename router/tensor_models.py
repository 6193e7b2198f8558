"""Everything that serves a repository of tensor models in the router. Only a process that has one imports it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.router.access.access import Access
from slipstream.router.api.kserve.client_settings import ClientSettings
from slipstream.router.api.kserve.http.kserve_api import KServeApi
from slipstream.router.api.kserve.kserve_server import KServeServer, keep_nothing
from slipstream.router.api.kserve.log_control import LogControl
from slipstream.router.api.kserve.trace_control import TraceControl
from slipstream.router.api.kserve.trace_file import TraceFile
from slipstream.router.api.tensors.tensor_endpoints import TensorEndpoints
from slipstream.router.batching.responses.response_cache import ResponseCache
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.front.front import Front
from slipstream.router.infer.ensembles.ensemble_version import EnsembleContext, EnsembleVersion
from slipstream.router.infer.repository_service import RepositoryService
from slipstream.router.infer.scaling.instance_scaling import InstanceScaling
from slipstream.router.infer.served_version import VersionFactory
from slipstream.router.infer.service_metrics import ServiceMetrics
from slipstream.router.infer.tensor_service import TensorService
from slipstream.router.instances.instance_port import BACKLOG, InstancePort, InstancePortConfig
from slipstream.router.language_backends.generation.generation_run import Generations
from slipstream.router.language_backends.language_version import LanguageContext, LanguageVersion
from slipstream.router.language_backends.model_links import ModelLinks
from slipstream.router.machine.gpu_reader import GpuReading
from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_repository.backend_directory import BackendDirectory
from slipstream.router.model_repository.config.backends import EXECUTED_BY_INSTANCES, LANGUAGE_BACKENDS
from slipstream.router.model_repository.explicit_loads import ExplicitLoads
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_error import RepositoryError
from slipstream.router.observability.certificate_metrics import CertificateHolder
from slipstream.router.observability.tensor_metrics.instance_usage import instance_usage_families
from slipstream.router.observability.tensor_metrics.tensor_metrics_page import TensorMetricsPage
from slipstream.router.observability.tensor_metrics.tensor_metrics_server import TensorMetricsServer
from slipstream.router.process.addresses import Endpoint, RepositoryAddresses
from slipstream.router.process.background_task import cancel_and_wait
from slipstream.router.process.listening import close_all, listening_at
from slipstream.router.router_models import RouterModels
from slipstream.router.status.repository_status import repository_status
from slipstream.router.status.wanted_models import WantedModel, WantedModels
from slipstream.router.tensor_memory.client_regions import ClientRegions
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.infer_error import InferError

if TYPE_CHECKING:
    from slipstream.router.api.kserve.grpc.grpc_server import GrpcServer

GRPC_GRACE_S = 2.0  # for the RPCs that still run when the router stops
BACKENDS = EXECUTED_BY_INSTANCES | {"", *LANGUAGE_BACKENDS}  # "": ensembles
GPUS = Path("/proc/driver/nvidia/gpus")

log = logging.getLogger(__name__)


class TensorModels:
    """Life cycle: `start`, which begins to load the models; `leave`, `stop_admission` and `drain`; and what `start`
    left in its `cleanup`. `instances_path` is the Unix socket for instances on this host; those on others come to the
    address for workers, over TLS where workers do. `models` are the language models; those that the repository names
    are `wanted`."""

    def __init__(
        self,
        config: RepositoryConfig,
        router: RouterConfig,
        token: str,
        instances_path: Path | None,
        models: RouterModels,
    ) -> None:
        self._config = config
        self._router = router
        self._host = router.http.host
        self._token = token
        self._instances_path = instances_path
        self._models = models
        self._links: ModelLinks
        self._language: LanguageContext
        self.wanted = WantedModels(self._not_started, self._started)
        self.service = TensorService(config.versions)
        self.server: KServeServer
        self.repository: RepositoryService
        self.scaling: InstanceScaling
        self.port: InstancePort
        self.metrics_page: TensorMetricsPage
        self.pool: RegionPool
        self._is_loaded = asyncio.Event()
        self._endpoints: TensorEndpoints | None = None
        self._failure: Exception | None = None
        self._grpc: GrpcServer | None = None

    async def start(
        self, front: Front, generations: GenerationService, access: Access, cleanup: AsyncExitStack
    ) -> RepositoryAddresses:
        """Listens for instances and clients, and serves at `front`. Raises OSError if it cannot."""
        config = self._config
        pool = self.pool = cleanup.enter_context(RegionPool(config.shared_memory_bytes))
        instances_at = await self._start_port(cleanup)
        explicit_loads = None if self._instances_path is None else ExplicitLoads.beside(self._instances_path)
        self.repository = self._open_repository(front, generations, explicit_loads, cleanup)
        self.scaling = InstanceScaling(self.service, self.repository.counts, config.max_instances)
        cleanup.push_async_callback(cancel_and_wait, asyncio.create_task(self.scaling.run()))
        self.server = self._open_server(explicit_loads, cleanup)
        self.service.traces = TraceFile(self.server.traces)
        self._serve_http(front, access)
        front.show_tensor_requests(self.service.history)
        cleanup.push_async_callback(cancel_and_wait, asyncio.create_task(self._load()))
        return RepositoryAddresses(
            self._unix_path or None,
            instances_at,
            await self._serve_grpc(front, access, pool, cleanup),
            await self._serve_metrics(front, pool, cleanup),
        )

    def _open_server(self, explicit_loads: ExplicitLoads | None, cleanup: AsyncExitStack) -> KServeServer:
        """With the settings that clients have made at the router before."""
        config = self._config
        regions, traces = ClientRegions(), TraceControl.of_settings(config.trace)
        logs = LogControl.of_verbosity(config.log_verbose)
        keep_settings: Callable[[], Awaitable[None]] = keep_nothing
        if explicit_loads is not None:
            settings = ClientSettings(explicit_loads.folder, regions, traces, logs)
            settings.restore()
            keep_settings = settings.keep
            cleanup.push_async_callback(settings.close)
        return KServeServer(
            self.service,
            self.repository,
            regions,
            traces,
            logs,
            keep_settings,
            name=config.server_id,
            loaded=self._is_loaded,
        )

    async def wait_loaded(self) -> None:
        """Until all models of the start have been tried. Raises InferError if one has failed and that is to end the
        server, RepositoryError if the repository cannot be read, ValueError for settings of models that it does not
        have."""
        await self._is_loaded.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def has_loaded(self) -> bool:
        """Whether all models of the start have been tried."""
        return self._is_loaded.is_set()

    @property
    def ledger(self) -> dict[str, int]:
        """What is in use: hosts, instances, requests that they have, places in shared memory. But for hosts, launches
        and the limit, all returns to zero when nothing runs."""
        return {**asdict(self.port.ledger), **asdict(self.pool.usage)}

    def status(self) -> dict[str, Any]:
        """The repository's models, and what their instances do, as `/cluster/status` shows them."""
        return repository_status(
            self.repository.index(),
            self.repository.failures,
            is_ready=self.repository.is_server_ready(),
            control_mode=self._config.control_mode,
            ledger=self.ledger,
            instances=self.scaling.status(),
        )

    @property
    def certificates(self) -> dict[str, CertificateHolder | None]:
        """By port."""
        return {"grpc": self._grpc, "instances": self.port.tls}

    def leave(self) -> None:
        """Be unready from now on, by either protocol."""
        self.repository.leave()

    def stop_admission(self) -> None:
        self.leave()
        self.service.stop_admission()
        self._links.close()

    async def drain(self, deadline_s: float) -> None:
        """Lets the requests end that came by gRPC and those that language models answer, for at most `deadline_s`: no
        other part of the router waits for them."""
        drains = [self._language.drain(deadline_s)]
        if self._grpc is not None:
            drains.append(self._grpc.drain(deadline_s))
        await asyncio.gather(*drains)

    def hosts_changed(self) -> None:
        """PortObserver: instances that wait for a host are started by the port itself; some of those that serve may be
        better off on another one."""
        for _, runtime in self.service.runtimes():
            if runtime.instances is not None:
                runtime.instances.spread()

    @property
    def _unix_path(self) -> str:
        return "" if self._instances_path is None else str(self._instances_path)

    async def _start_port(self, cleanup: AsyncExitStack) -> Endpoint:
        """Listens for instances; those on other hosts come to the address that is returned. Raises OSError."""
        host, config = self._router.worker_host, self._config
        sockets = listening_at(host, config.instance_port, BACKLOG)
        cleanup.callback(close_all, sockets)
        port = InstancePortConfig(self._token, self._unix_path, num_hosts=config.hosts, tls=self._router.worker_tls)
        self.port = InstancePort(port, self.pool, self, sockets)
        await self.port.start()
        cleanup.push_async_callback(self.port.stop)
        return Endpoint(host, sockets[0].getsockname()[1])

    def _open_repository(
        self,
        front: Front,
        generations: GenerationService,
        explicit_loads: ExplicitLoads | None,
        cleanup: AsyncExitStack,
    ) -> RepositoryService:
        config = self._config
        models = ModelRepository(config.paths, options_of(config))
        cache = ResponseCache.of_size(config.cache_bytes)
        language_version = self._language_version(front, generations, cache)
        cleanup.push_async_callback(cancel_and_wait, asyncio.create_task(self._links.watch()))
        factories: dict[str, VersionFactory] = {
            "": partial(EnsembleVersion, EnsembleContext(self.service, cache)),
            **dict.fromkeys(LANGUAGE_BACKENDS, language_version),
        }
        repository = RepositoryService(config, models, self.service, self.port, explicit_loads, factories, cache)
        cleanup.push_async_callback(repository.close)
        return repository

    def _serve_http(self, front: Front, access: Access) -> None:
        """At the router's own port: the protocol of KServe, and OpenAI's endpoints that tensor models answer."""
        config = self._config
        if config.http.enabled:
            front.serve_tensors(KServeApi(self.server, self.pool, config.http, access))
        if config.endpoints.is_on:
            self._endpoints = TensorEndpoints(
                config.endpoints,
                self.server,
                self.pool,
                access,
                front.apis.flow.bodies,
                front.apis.ping_s,
                config.http.restricted,
            )
            front.serve_endpoints(self._endpoints)

    def _language_version(
        self, front: Front, service: GenerationService, cache: ResponseCache | None
    ) -> VersionFactory:
        named = self._config.language_models
        self._links = ModelLinks(front.catalog, service, service.worker_port, self._models, self.wanted, named)
        flow = front.apis.flow
        generations = Generations(flow.lookup, flow.preparation, service, front.counts)
        self._language = LanguageContext(generations, self._links, cache)
        return partial(LanguageVersion, self._language)

    def _started(self) -> None:
        """The cluster has workers for a language model of the repository, as it is wanted now."""
        self._links.served()

    def _not_started(self, model: WantedModel, reason: str) -> None:
        """The cluster has no workers for a language model of the repository."""
        log.error("language model %r cannot be served: %s", model.name, reason)
        self._links.failed(model, reason)

    async def _serve_grpc(
        self, front: Front, access: Access, pool: RegionPool, cleanup: AsyncExitStack
    ) -> Endpoint | None:
        if self._config.grpc.port is None:
            return None
        from slipstream.router.api.kserve.grpc.grpc_server import GrpcServer  # and with it grpcio

        self._grpc = server = GrpcServer(
            self._config.grpc, self.server, access, pool, host=self._host, tracer=front.tracer
        )
        port = await server.start()
        cleanup.push_async_callback(server.stop, GRPC_GRACE_S)
        return Endpoint(self._config.grpc.host or self._host, port)

    async def _serve_metrics(self, front: Front, pool: RegionPool, cleanup: AsyncExitStack) -> Endpoint | None:
        config = self._config.metrics
        counts = ServiceMetrics(self.service, self.repository.cache)
        page = self.metrics_page = TensorMetricsPage(counts, pool, config, self._gpus_of_hosts)
        await page.start()
        cleanup.push_async_callback(page.stop)
        front.serve_tensor_metrics(page.render)
        front.add_metrics(lambda: instance_usage_families(self.port.usage))
        if config.port is None:
            return None
        server = TensorMetricsServer(config, page, host=self._host)
        port = await server.start()
        cleanup.push_async_callback(server.stop)
        return Endpoint(config.host or self._host, port)

    def _gpus_of_hosts(self) -> list[GpuReading]:
        return [gpu for host in self.port.usage for gpu in host.gpus]

    async def _load(self) -> None:
        try:
            await self.repository.start()
        except (InferError, RepositoryError, ValueError) as error:
            self._failure = error
        except Exception as error:
            log.exception("the models of the start could not be loaded")
            self._failure = error
        finally:
            self._is_loaded.set()
            self.wanted.complete()
        for problem in self._endpoints.problems() if self._endpoints is not None else ():
            log.warning("%s", problem)
        if self._config.control_mode == "poll":
            await self.repository.poll()


def options_of(config: RepositoryConfig) -> ReadOptions:
    devices = tuple(range(len(list(GPUS.iterdir())))) if GPUS.is_dir() else ()
    cache = HostCache(config.download_folder, config.download_max_gib)
    further = BackendDirectory(Path(config.backend_directory) if config.backend_directory is not None else None)
    return ReadOptions(
        config.config_name,
        config.auto_complete,
        devices,
        cache=cache,
        backends=BACKENDS,
        backend_directory=further,
    )
