"""Everything the router serves over HTTP: the API, health, metrics, and what operators ask."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from typing import Protocol

import orjson

from slipstream.router.access.access import Access
from slipstream.router.access.caller import forbidden
from slipstream.router.http.errors import HttpError
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.reader import CheckCaller, Request
from slipstream.router.http.routes import Routes
from slipstream.router.metrics import FrontMetrics
from slipstream.router.metrics_page import CONTENT_TYPE, MetricsPage
from slipstream.router.openai.api import Generations, OpenAiApi
from slipstream.router.request_pages import Records, RequestPages
from slipstream.router.status import Snapshot
from slipstream.router.tokenizer import Tokenizer
from slipstream.router.tracing.context import trace_context
from slipstream.router.tracing.tracer import Tracer

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
ADMIN_PATHS = frozenset({"/metrics", "/cluster/status"})
CLIENT_LEFT = 499  # nginx's number for it; counted, never sent


class Cluster(Generations, Records, Protocol):
    """What the front needs of `GenerationService`."""

    def snapshot(self) -> Snapshot: ...


class Front:
    """The handler of the HTTP server. `unready_because` gives the reason, None if the cluster is ready. With
    `has_admin_port`, what operators ask is served by `admin` and nowhere else."""

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        service: Cluster,
        unready_because: Callable[[], str | None],
        num_connections: Callable[[], int],
        access: Access | None = None,
        has_admin_port: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        self._model = model
        self._service = service
        self._unready_because = unready_because
        self._metrics = FrontMetrics()
        self._access = access or Access()
        self._tracer = tracer
        counts = tracer.counts if tracer is not None else None
        self._page = MetricsPage(model, self._metrics, service.snapshot, num_connections, self._access, traces=counts)
        self._routes, self._admin_routes = Routes(), Routes()
        OpenAiApi(model, tokenizer, service, self._metrics, self._access).add_to(self._routes)
        for routes in (self._routes, self._admin_routes):
            routes.add("GET", "/health/live", self.live)
            routes.add("GET", "/health/ready", self.ready)
        for routes in (self._admin_routes,) if has_admin_port else (self._routes, self._admin_routes):
            routes.add("GET", "/metrics", self.metrics)
            routes.add("GET", "/cluster/status", self.status)
        pages = RequestPages(service)
        pages.add_to(self._admin_routes)
        if self._access.has_keys or not has_admin_port:  # with keys, everybody may ask about requests of their own
            pages.add_to(self._routes)

    async def __call__(self, request: Request, exchange: Exchange) -> None:
        """Serve one request. The client's X-Request-Id comes back if it is a harmless one, else a new id."""
        await self._serve(self._routes, request, exchange, is_open=request.path in OPEN_PATHS)

    @staticmethod
    def request_id_of(request: Request) -> str:
        """The id that the client gave, if it is a harmless one, else a new one."""
        given = request.headers.get(b"x-request-id", b"")
        return given.decode("ascii") if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)

    @property
    def counts(self) -> FrontMetrics:
        """What was counted here, and what was added to it from elsewhere."""
        return self._metrics

    @property
    def check_caller(self) -> CheckCaller | None:
        """For large bodies, which are not taken from strangers in the first place."""
        return self._access.caller_with if self._access.has_keys else None

    async def admin(self, request: Request, exchange: Exchange) -> None:
        """Serve one request at the operators' port, where nobody is asked for a key: who reaches it may."""
        await self._serve(self._admin_routes, request, exchange, is_open=True)

    async def _serve(self, routes: Routes, request: Request, exchange: Exchange, *, is_open: bool) -> None:
        exchange.request_id = self.request_id_of(request)
        self._begin_trace(request, exchange)
        status = 500
        try:
            if not is_open:
                exchange.caller = self._access.authenticate(request)
                if request.path in ADMIN_PATHS and not exchange.caller.is_admin:
                    raise forbidden(f"{request.path} needs an API key of an administrator.", None, "admin_only")
            await routes(request, exchange)
            status = exchange.status
        except HttpError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = CLIENT_LEFT
            raise
        finally:
            self._metrics.responses[status] += 1
            if exchange.trace is not None and self._tracer is not None:
                self._tracer.end(exchange.trace, status, exchange.request_id)

    def _begin_trace(self, request: Request, exchange: Exchange) -> None:
        """A caller's trace id is kept with the request's record also where no spans are made."""
        traceparent = request.headers.get(b"traceparent")
        parent = None
        if traceparent is not None:
            parent = trace_context(traceparent, request.headers.get(b"tracestate"))
            exchange.trace_id = parent.trace_id if parent is not None else ""
        if self._tracer is not None:
            exchange.trace = self._tracer.begin(request, parent)
            if exchange.trace is not None:
                exchange.trace_id = exchange.trace.trace_id

    async def live(self, request: Request, exchange: Exchange) -> None:
        """The process is here and its loop turns."""
        exchange.respond(200, b'{"status":"live"}')

    async def ready(self, request: Request, exchange: Exchange) -> None:
        """A token has been generated through the whole cluster, and a decode worker is connected."""
        reason = self._unready_because()
        if reason is not None:
            raise HttpError(503, f"Not ready: {reason}.", kind="server_error", code="not_ready")
        exchange.respond(200, b'{"status":"ready"}')

    async def metrics(self, request: Request, exchange: Exchange) -> None:
        exchange.respond(200, self._page.render(), CONTENT_TYPE)

    async def status(self, request: Request, exchange: Exchange) -> None:
        """The snapshot as JSON, for `slipstream status`."""
        snapshot = self._service.snapshot()
        unready = self._unready_because()
        status = {
            "model": self._model,
            "ready": unready is None,
            "unready_because": unready,
            "max_model_len": self._service.max_model_len,
            "num_waiting": snapshot.num_waiting,
            "num_running": snapshot.num_running,
            "num_requests_by_phase": snapshot.num_requests_by_phase,
            "queue_depth": snapshot.queue_depth,
            "workers": snapshot.workers,
            "totals": snapshot.totals,
        }
        exchange.respond(200, orjson.dumps(status, option=orjson.OPT_NON_STR_KEYS))
