"""One HTTP request to an endpoint: found, let in within the limits of its key, counted when it ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from pydantic import BaseModel

from slipstream.router.access.access import Access, Permit
from slipstream.router.access.usage import UsageCounts
from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.kserve.http.restricted_apis import ApiRestrictions
from slipstream.router.api.openai.body.parsing import BodyParser
from slipstream.router.api.tensors.models.endpoint_errors import endpoint_error
from slipstream.router.api.tensors.models.endpoint_table import EndpointTable, NamedEndpoint
from slipstream.router.api.tensors.models.model_caller import ModelCaller
from slipstream.router.api.tensors.models.model_tensors import ModelTensors
from slipstream.router.api.tensors.models.row_layout import RowLayout
from slipstream.router.config.endpoints_config import AnyEndpoint, EndpointKind
from slipstream.router.http.http_error import HttpError, router_restarted
from slipstream.router.http.reader import Request
from slipstream.router.observability.endpoint_metrics import EndpointCounts
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import RequestTokens
from slipstream.router.tensors.infer_service import InferService

CLIENT_LEFT = 499
BROKEN_OFF = "The router was killed while it answered."

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class EndpointServer:
    """What all endpoints have in common. Requests wait until the models of the start are `loaded`."""

    table: EndpointTable
    service: InferService
    pool: RegionPool | None
    access: Access
    bodies: BodyParser
    loaded: asyncio.Event
    restrictions: ApiRestrictions
    counts: EndpointCounts = field(default_factory=EndpointCounts)

    def parse(self, request: Request, exchange: ApiExchange, form: type[Body]) -> Body:
        """The body. Raises HttpError."""
        return self.bodies.parse(request, exchange, form)

    def call(self, kind: EndpointKind, asked: str, request: Request, exchange: ApiExchange) -> EndpointCall:
        """Raises HttpError: 404, 403, and 503 for one that cannot be repeated after the death of a router."""
        if exchange.head_sent:
            raise router_restarted(BROKEN_OFF)
        self.restrictions.check("inference", request)
        return EndpointCall(self, self.table.find(kind, asked, exchange.context.caller), exchange)


class EndpointCall:
    """Is entered for the time of the request. `admit` is called once it is known how many tokens it has."""

    def __init__(self, server: EndpointServer, endpoint: NamedEndpoint, exchange: ApiExchange) -> None:
        self._server = server
        self._exchange = exchange
        self._permit: Permit | None = None
        self._num_tokens = 0
        self._num_output_tokens = 0
        self._by_language_models = RequestTokens()
        self._arrived_s = time.monotonic()
        self.endpoint = endpoint

    @property
    def config(self) -> AnyEndpoint:
        return self.endpoint.config

    @property
    def key(self) -> tuple[str, str]:
        return self.endpoint.kind, self.endpoint.name

    async def __aenter__(self) -> EndpointCall:
        if not self._server.loaded.is_set():
            await self._server.loaded.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = self._exchange.status or 500
        if isinstance(error, HttpError):
            status = error.status
        elif isinstance(error, asyncio.CancelledError):
            status = CLIENT_LEFT
        counts, access = self._server.counts, self._server.access
        counts.ended(self.key, status, time.monotonic() - self._arrived_s)
        if self._permit is None:
            return
        access.settle(self._permit, self._used_at_end(has_failed=error is not None))

    def admit(self, num_inputs: int, num_tokens: int = 0) -> None:
        """Raises HttpError 429 beyond a limit of the key."""
        self._num_tokens = num_tokens
        access, caller = self._server.access, self._exchange.context.caller
        self._permit, lines = access.admit(caller, self.endpoint.name, num_tokens, num_sequences=1)
        self._exchange.header_lines += lines
        self._server.counts.tokens[self.key] += num_tokens
        self.count_inputs(num_inputs)

    def count_inputs(self, num_inputs: int) -> None:
        """That it has more of them than was known when it was let in."""
        self._server.counts.inputs[self.key] += num_inputs

    def used(self, num_tokens: int, num_output_tokens: int) -> None:
        """What the request has used after all."""
        self._num_tokens, self._num_output_tokens = num_tokens, num_output_tokens

    def _used_at_end(self, *, has_failed: bool) -> UsageCounts:
        """What language models have used, if the request has come to one; else what the endpoint knows."""
        tokens = self._by_language_models
        if tokens.num_prompt:
            return UsageCounts(1, int(has_failed), tokens.num_prompt, tokens.num_cached, tokens.num_output)
        return UsageCounts(1, int(has_failed), self._num_tokens, 0, self._num_output_tokens)

    def model(self, of: NamedEndpoint | None = None) -> ModelCaller:
        """The model of the endpoint, or of another one. Raises HttpError if it is not served now."""
        endpoint, version = of or self.endpoint, (of or self.endpoint).config.version
        try:
            spec = self._server.service.spec_of(endpoint.model, version)
        except InferError as error:
            raise endpoint_error(error, endpoint.title) from error
        server, tokens = self._server, self._by_language_models
        return ModelCaller(server.service, server.pool, endpoint.title, spec, version, self._exchange, tokens)

    def tensors(self, model: ModelCaller, configured: dict[str, str]) -> ModelTensors:
        return ModelTensors(self.endpoint.title, model.spec, configured)

    def layout(self, model: ModelCaller) -> RowLayout:
        return RowLayout(self.endpoint.title, model.spec)
