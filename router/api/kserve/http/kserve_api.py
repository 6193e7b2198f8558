"""KServe v2 over HTTP: which call serves which path, who may make it, and what its errors become."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from slipstream.router.access.access import Access
from slipstream.router.access.caller import forbidden
from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.http.call_target import CallTarget, target_of
from slipstream.router.api.kserve.http.generate_calls import GenerateCalls
from slipstream.router.api.kserve.http.infer_calls import InferCalls, RequestMaker
from slipstream.router.api.kserve.http.kserve_error import (
    http_error,
    is_of_kserve,
    kserve_error,
    not_allowed,
    not_found,
)
from slipstream.router.api.kserve.http.large_bodies import LargeBodies
from slipstream.router.api.kserve.http.memory_calls import MemoryCalls
from slipstream.router.api.kserve.http.repository_calls import RepositoryCalls
from slipstream.router.api.kserve.http.restricted_apis import ApiRestrictions
from slipstream.router.api.kserve.http.server_pages import ServerPages
from slipstream.router.api.kserve.http.setting_calls import SettingCalls
from slipstream.router.api.kserve.infer_limits import InferLimits
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.config.kserve_config import KServeHttpConfig, RestrictedName
from slipstream.router.http.http_error import ErrorForm, router_restarted
from slipstream.router.http.reader import Request
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.infer_error import InferError

CallHandler = Callable[[Request, ApiExchange, CallTarget], Awaitable[None]]
OPEN_PATHS = frozenset({"/v2", "/v2/health/live", "/v2/health/ready"})  # that need no key
GET, POST, BOTH = ("GET",), ("POST",), ("GET", "POST")
BROKEN_OFF = "The router was killed while it answered."


@dataclass(frozen=True, slots=True)
class ApiCall:
    """`group` is what may be restricted as a whole. With `for_admin`, keys must be an administrator's. Unless it comes
    `at_once`, it is served when the models of the start are loaded: a client of the previous router must not find fewer
    models, and what it loads must not be loaded by the start after it."""

    handler: CallHandler
    methods: tuple[str, ...]
    group: RestrictedName
    for_admin: bool = False
    at_once: bool = False


class KServeApi:
    """Serves every path below /v2. `pool` has the memory for large tensors; None: they stay in this process."""

    open_paths = OPEN_PATHS

    def __init__(
        self, server: KServeServer, pool: RegionPool | None, config: KServeHttpConfig, access: Access | None = None
    ) -> None:
        maker, limits = RequestMaker(config.forward_headers), InferLimits(access or Access())
        infer = InferCalls(server, pool, config, maker, limits)
        generate = GenerateCalls(server, pool, config, maker, limits)
        pages, repository = ServerPages(server), RepositoryCalls(server)
        memory, settings = MemoryCalls(server), SettingCalls(server)
        self.body_places = LargeBodies(pool, config.max_input_bytes) if pool is not None else None
        self._loaded = server.loaded
        self._restrictions = ApiRestrictions(config.restricted)
        self._calls = {
            "infer": ApiCall(infer.infer, POST, "inference"),
            "generate": ApiCall(generate.generate, POST, "inference"),
            "generate_stream": ApiCall(generate.generate_stream, POST, "inference"),
            "live": ApiCall(pages.live, GET, "health", at_once=True),
            "ready": ApiCall(pages.ready, GET, "health", at_once=True),
            "metadata": ApiCall(pages.metadata, GET, "metadata"),
            "model": ApiCall(pages.model, GET, "metadata"),
            "config": ApiCall(pages.config, GET, "model-config"),
            "stats": ApiCall(pages.stats, GET, "statistics"),
            "index": ApiCall(repository.index, POST, "model-repository", for_admin=True, at_once=True),
            "load": ApiCall(repository.load, POST, "model-repository", for_admin=True),
            "unload": ApiCall(repository.unload, POST, "model-repository", for_admin=True),
            "system/status": ApiCall(memory.status, GET, "shared-memory", for_admin=True),
            "system/register": ApiCall(memory.register, POST, "shared-memory", for_admin=True),
            "system/unregister": ApiCall(memory.unregister, POST, "shared-memory", for_admin=True),
            "cuda/status": ApiCall(memory.cuda_status, GET, "shared-memory", for_admin=True),
            "cuda/register": ApiCall(memory.cuda_register, POST, "shared-memory", for_admin=True),
            "cuda/unregister": ApiCall(memory.cuda_unregister, POST, "shared-memory", for_admin=True),
            "trace/setting": ApiCall(settings.trace, BOTH, "trace", for_admin=True),
            "logging": ApiCall(settings.logging, BOTH, "logging", for_admin=True),
        }

    @property
    def error_form(self) -> ErrorForm:
        return kserve_error

    def serves(self, path: str) -> bool:
        return is_of_kserve(path)

    async def __call__(self, request: Request, exchange: ApiExchange) -> None:
        """Raises HttpError."""
        if exchange.head_sent:  # by a router that was killed: its answer cannot be continued
            raise router_restarted(BROKEN_OFF)
        try:
            target = target_of(request.path)
            if target is None:
                raise not_found()
            call = self._calls[target.kind]
            if request.method == "OPTIONS" and exchange.cors_lines:
                exchange.respond(204, b"")
                return
            self._check(call, request, exchange)
            if not call.at_once and not self._loaded.is_set():
                await self._loaded.wait()
            await call.handler(request, exchange, target)
        except InferError as error:
            raise http_error(error) from error

    def _check(self, call: ApiCall, request: Request, exchange: ApiExchange) -> None:
        """Raises HttpError."""
        self._restrictions.check(call.group, request)
        if request.method not in call.methods:
            raise not_allowed()
        if call.for_admin and not exchange.context.caller.is_admin:
            raise forbidden(f"{request.path} needs an API key of an administrator.", None, "admin_only")
