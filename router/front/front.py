"""Everything the router serves over HTTP: the API, health, metrics, and the pages for operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from prometheus_client.core import Metric

from slipstream.router.access.access import Access
from slipstream.router.api.admin.cluster_pages import ClusterPages, ObservedService, UnreadyBecause
from slipstream.router.api.admin.request_pages import RequestHistory, RequestPages
from slipstream.router.api.admin.worker_pages import DrainableWorkers, WorkerPages
from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.generation.generation_flow import SubmitService
from slipstream.router.api.pages.pages import InfoPages
from slipstream.router.api.ui.live_entries import LiveEntries
from slipstream.router.api.ui.live_pages import LivePages
from slipstream.router.api.ui.page import serve_page
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.front.api_front import DEFAULT_CONFIG, OPEN_PATHS, READY_PATHS, ApiFront
from slipstream.router.front.tensor_api import EndpointApi
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.infer.requests.request_record import InferHistory
from slipstream.router.observability.metrics_page import CONTENT_TYPE, MetricsPage
from slipstream.router.observability.tracing.tracer import Tracer


class DispatcherView(SubmitService, ObservedService, Protocol):
    """What the front needs of `GenerationService`."""

    @property
    def history(self) -> RequestHistory: ...
    @property
    def worker_port(self) -> DrainableWorkers: ...


class Front(ApiFront):
    """The HTTP handler of the dispatcher's own process, which can also answer questions about the cluster's state.
    `unready_because` returns the reason why the cluster, or a model, is not ready, or None. If `config.admin` has a
    port, the operators' pages are served by `admin` only."""

    def __init__(
        self,
        catalog: Catalog,
        service: DispatcherView,
        unready_because: UnreadyBecause,
        num_connections: Callable[[], int],
        config: RouterConfig = DEFAULT_CONFIG,
        access: Access | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(catalog, service, config, access, tracer)
        self._runs_jobs = config.frontends == 1  # else the front processes do, so that this one only dispatches
        self._unready_because = unready_because
        self._page = MetricsPage(
            self._metrics,
            lambda: service.models,
            service.snapshot_of,
            num_connections,
            self._access,
            traces=self.trace_counts,
            store=self.apis.store,
        )
        self._render_tensor_metrics: Callable[[], bytes] | None = None
        self._cluster = ClusterPages(service, unready_because)
        self._live = LiveEntries(service, unready_because, service.history, calls_admin=config.ui.calls_admin)
        self._live_pages = LivePages(self._live)
        self._worker_pages = WorkerPages(service.worker_port)
        self._request_pages = RequestPages(service.history)
        has_keys = self._access.keys.is_on
        self._for_people = InfoPages(catalog, self._routes, has_keys=has_keys, open_paths=OPEN_PATHS)
        self._admin_routes = ApiRoutes()
        self._add_admin_routes(config)
        self._add_client_routes(config)

    def _add_admin_routes(self, config: RouterConfig) -> None:
        """For the administrators' port."""
        routes = self._admin_routes
        routes.add("GET", "/health/live", self.live)
        self._add_ready(routes)
        self._add_cluster_pages(routes)
        serve_page(config, routes, calls_admin=True)
        self._worker_pages.add_to(routes)
        self._request_pages.add_to(routes)

    def _add_client_routes(self, config: RouterConfig) -> None:
        """Beside the APIs, at the clients' port."""
        routes = self._routes
        has_admin_port, has_keys = config.admin.port is not None, self._access.keys.is_on
        self._add_ready(routes)
        if not has_admin_port:
            self._add_cluster_pages(routes)
        if has_keys and not has_admin_port:  # only with keys: a stranger must not be able to drain workers
            self._worker_pages.add_to(routes)
        if has_keys or not has_admin_port:  # with keys, each caller may ask about its own requests
            self._request_pages.add_to(routes)
        self._for_people.add_to(routes, config.http.path_prefix)

    def _add_ready(self, routes: ApiRoutes) -> None:
        for path in READY_PATHS:
            routes.add("GET", path, self.ready)

    def _add_cluster_pages(self, routes: ApiRoutes) -> None:
        routes.add("GET", "/metrics", self.metrics)
        self._cluster.add_to(routes)
        self._live_pages.add_to(routes)

    def admin(self, request: Request, exchange: ApiExchange) -> Awaitable[None]:
        """Serves one request at the administrators' port, without a key: all clients that reach the port may use it."""
        return self._serve(self._admin_routes, request, exchange, is_open=True)

    async def ready(self, request: Request, exchange: ApiExchange) -> None:
        """Readiness: a token has been generated through the whole cluster, and a decode worker is connected."""
        reason = self._unready_because()
        if reason is not None:
            raise HttpError(503, f"Not ready: {reason}.", kind="server_error", code="not_ready")
        exchange.respond(200, b'{"status":"ready"}')

    async def metrics(self, request: Request, exchange: ApiExchange) -> None:
        """What Prometheus collects."""
        page = await self._page.render()
        if self._render_tensor_metrics is not None:
            page += self._render_tensor_metrics()
        exchange.respond(200, page, CONTENT_TYPE)

    def add_metrics(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Shows these among the metrics from now on."""
        self._page.add(families)

    def serve_tensor_metrics(self, render: Callable[[], bytes]) -> None:
        """Puts Triton's metrics behind the others from now on."""
        self._render_tensor_metrics = render

    def serve_endpoints(self, api: EndpointApi) -> None:
        """Serves tensor models at endpoints of OpenAI's shape, and shows what they count."""
        super().serve_endpoints(api)
        self._page.add(api.counts.families)

    def show_tensor_requests(self, history: InferHistory) -> None:
        """Shows the requests to tensor models beside the others, and traces them."""
        self._request_pages.show_tensor_requests(history)
        if self._tracer is not None:
            self._tracer.trace_tensor_requests(history)

    def show_repository(self, status: Callable[[], dict[str, Any]]) -> None:
        """Shows the state of a repository in that of the cluster, and its API on the home page."""
        self._cluster.show_repository(status)
        self._live.repository = status
        self._for_people.has_repository = True

    def status_body(self) -> bytes:
        """The JSON of `/cluster/status`."""
        return self._cluster.status_body()
