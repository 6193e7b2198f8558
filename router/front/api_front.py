"""The HTTP handler of every process that faces clients: it checks keys, serves the API, counts and traces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack

import orjson

from slipstream import __version__
from slipstream.router.access.access import Access
from slipstream.router.access.caller import forbidden
from slipstream.router.api.anthropic.error_form import anthropic_error, asks_anthropic, error_form
from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes, ExchangeContext
from slipstream.router.api.generation.generation_flow import SubmitService
from slipstream.router.api.pages.pages import PAGE_PATHS
from slipstream.router.api.session_headers import session_in
from slipstream.router.api.ui.page import serve_page
from slipstream.router.api.ui.page_files import PREFIX
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.extensions.loading import load_extensions
from slipstream.router.extensions.request_hooks import RequestHooks
from slipstream.router.front.client_apis import ClientApis
from slipstream.router.front.tensor_api import EndpointApi, TensorApi
from slipstream.router.http.body_coding import decode_body
from slipstream.router.http.exchange import Handler
from slipstream.router.http.http_error import ErrorForm, HttpError
from slipstream.router.http.large_body import BodyPlaces
from slipstream.router.http.reader import CheckCaller, Request
from slipstream.router.http.routes import Route
from slipstream.router.observability.front_counts import FrontMetrics, ModelCounts
from slipstream.router.observability.refusal_log import RefusalLog
from slipstream.router.observability.tracing.context import trace_context
from slipstream.router.observability.tracing.tracer import TraceCounts, Tracer
from slipstream.router.process.random_bytes import random_bytes

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
READY_PATHS = ("/health/ready", "/health", "/ping")  # the latter two are where clients of vLLM and SageMaker ask
OPEN_PATHS = frozenset({"/health/live", *READY_PATHS, *PAGE_PATHS})  # that need no key
ADMIN_PATHS = ("/metrics", "/cluster/")  # and everything below them
DEFAULT_CONFIG = RouterConfig()
ANTHROPIC_REQUEST_ID = "request-id"  # where its clients look for it
CLIENT_LEFT = 499  # nginx's status for a client that disconnected; counted, never sent


class ApiFront:
    """The handler of an HTTP server."""

    _runs_jobs = True  # batches, and responses in the background

    def __init__(
        self,
        catalog: Catalog,
        service: SubmitService,
        config: RouterConfig = DEFAULT_CONFIG,
        access: Access | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._catalog = catalog
        self._metrics = FrontMetrics(entry.model.name for entry in catalog)
        self._access = access or Access()
        self._tracer = tracer
        self._refusals = RefusalLog()
        self._open_paths = OPEN_PATHS | {config.http.path_prefix}  # which leads to the home page
        self._max_body_bytes = config.http.max_body_mib * 1024 * 1024
        self._routes = ApiRoutes()
        self.apis = ClientApis(catalog, service, self._metrics, self._access, config, self._routes)
        self._routes.add("GET", "/health/live", self.live)
        self._routes.add("GET", "/version", self.version)
        serve_page(config, self._routes, calls_admin=config.admin.port is None)
        self._tensor_api: TensorApi | None = None
        hooks = RequestHooks(load_extensions(config.extensions), self._routes)
        hooks.add_to(self._routes)
        self._hooks = None if hooks.is_empty else hooks

    def __call__(self, request: Request, exchange: ApiExchange) -> Awaitable[None]:
        """Serve one request. The response carries the client's X-Request-Id if that is a harmless one, else a new
        id."""
        if self._tensor_api is not None and self._tensor_api.serves(request.path):
            exchange.error_form = self._tensor_api.error_form
            is_open = request.path in self._tensor_api.open_paths
            return self._serve(self._tensor_api, request, exchange, is_open=is_open, decodes=False)
        return self._serve(self._routes, request, exchange, is_open=self._is_open(request.path))

    def _is_open(self, path: str) -> bool:
        """Whether it needs no key. The page for people holds nothing, and the admin API checks a token of its own."""
        return path in self._open_paths or path == "/ui" or path.startswith(PREFIX)

    def open(self, cleanup: AsyncExitStack) -> None:
        """Begins to open the store of the APIs, and to run the jobs in it; `cleanup` ends that."""
        self.apis.open(cleanup, runs_jobs=self._runs_jobs)

    @property
    def catalog(self) -> Catalog:
        """The models that are served. They change by `add_model` and `remove_model`."""
        return self._catalog

    def add_model(self, model: ServedModel) -> None:
        """Serves one more model. Raises NameTakenError."""
        self._catalog.add(model)
        self._metrics.models[model.name] = ModelCounts()

    def remove_model(self, name: str) -> None:
        """Forgets a model, and what was counted of it. Raises UnknownNameError."""
        self._catalog.remove(name)
        del self._metrics.models[name]

    @property
    def described_routes(self) -> Sequence[Route]:
        """The paths as they are described to people."""
        return self._routes.described()

    @staticmethod
    def request_id_of(request: Request) -> str:
        """The client's X-Request-Id if it is a harmless one, else a new id."""
        given = request.headers.get(b"x-request-id")
        return given.decode("ascii") if given and REQUEST_ID.fullmatch(given) else random_bytes(16).hex()

    @property
    def counts(self) -> FrontMetrics:
        """The counts of this process, including what other fronts have reported to it."""
        return self._metrics

    @property
    def tracer(self) -> Tracer | None:
        """Of the requests that are sampled; None if tracing is off."""
        return self._tracer

    @property
    def trace_counts(self) -> TraceCounts | None:
        """How many traces were sent, dropped or not accepted; None if tracing is off."""
        return self._tracer.counts if self._tracer is not None else None

    @property
    def check_caller(self) -> CheckCaller | None:
        """The check that a server runs before it accepts a large body, so that strangers cannot send one."""
        return self._access.keys.caller_with if self._access.keys.is_on else None

    async def live(self, request: Request, exchange: ApiExchange) -> None:
        """Liveness: the process is up and its event loop runs."""
        exchange.respond(200, b'{"status":"live"}')

    async def version(self, request: Request, exchange: ApiExchange) -> None:
        """The version of this software, in vLLM's form."""
        exchange.respond(200, orjson.dumps({"version": __version__}))

    def serve_tensors(self, api: TensorApi) -> None:
        """Serves the tensor API from now on. To be called before a server is made with `body_places`."""
        self._tensor_api = api

    def serve_endpoints(self, api: EndpointApi) -> None:
        """Serves tensor models at endpoints of OpenAI's shape from now on."""
        self.apis.serve_endpoints(api)

    @property
    def body_places(self) -> BodyPlaces | None:
        """Where a server puts large bodies."""
        return self._tensor_api.body_places if self._tensor_api is not None else None

    def error_form_of(self, path: str) -> ErrorForm:
        """The form of errors at a path, for what a server refuses before this handler gets it."""
        if self._tensor_api is not None and self._tensor_api.serves(path):
            return self._tensor_api.error_form
        return error_form(path)

    async def _serve(
        self,
        routes: Handler[ExchangeContext],
        request: Request,
        exchange: ApiExchange,
        *,
        is_open: bool,
        decodes: bool = True,
    ) -> None:
        """`decodes`: compressed bodies are decompressed here."""
        exchange.request_id = self.request_id_of(request)
        if asks_anthropic(request):
            exchange.error_form = anthropic_error
            exchange.add_header(ANTHROPIC_REQUEST_ID, exchange.request_id)
        context = exchange.context
        self._begin_trace(request, context)
        context.session = session_in(request.headers)
        status, hooked = 500, None
        try:
            if not is_open and request.method != "OPTIONS":
                self._authenticate(request, context)
            if decodes and b"content-encoding" in request.headers and request.method != "OPTIONS":  # which needs no key
                await decode_body(request, self._max_body_bytes)
            if self._hooks is not None:
                hooked = self._hooks.begin(request, exchange)
                await hooked.before()
            await routes(request, exchange)
            status = exchange.status
        except HttpError as error:
            status = error.status
            self._note_refused(error, exchange)
            raise
        except asyncio.CancelledError:
            status = CLIENT_LEFT
            raise
        finally:
            self._metrics.responses[status] += 1
            if hooked is not None:
                hooked.after(status)
            if context.trace is not None and self._tracer is not None:
                self._tracer.end(context.trace, status, exchange.request_id)

    def _authenticate(self, request: Request, context: ExchangeContext) -> None:
        """Sets the caller. Raises HttpError without a valid key, or if the path needs one of an administrator."""
        context.caller = self._access.keys.authenticate(request)
        if request.path.startswith(ADMIN_PATHS) and not context.caller.is_admin:
            raise forbidden(f"{request.path} needs an API key of an administrator.", None, "admin_only")

    def _note_refused(self, error: HttpError, exchange: ApiExchange) -> None:
        context = exchange.context
        tenant = context.caller.tenant("")
        self._refusals.refused(error, exchange.request_id, context.model, tenant, context.trace_id)

    def _begin_trace(self, request: Request, context: ExchangeContext) -> None:
        """Start a trace if the request is sampled. The caller's trace id is recorded even if it is not."""
        traceparent = request.headers.get(b"traceparent")
        parent = None
        if traceparent is not None:
            parent = trace_context(traceparent, request.headers.get(b"tracestate"))
            context.trace_id = parent.trace_id if parent is not None else ""
        if self._tracer is not None:
            context.trace = self._tracer.begin(request, parent)
            if context.trace is not None:
                context.trace_id = context.trace.trace_id
