"""All endpoints of OpenAI's shape that a repository's configuration has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.router.access.access import Access
from slipstream.router.access.caller import Caller
from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.kserve.http.restricted_apis import ApiRestrictions
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.api.openai.body.parsing import BodyParser
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.api.tensors.audio.transcriptions_api import TranscriptionsApi
from slipstream.router.api.tensors.chat.text_model_api import TextModelApi
from slipstream.router.api.tensors.embeddings.embeddings_api import EmbeddingsApi
from slipstream.router.api.tensors.embeddings.text_vectors import TextVectors
from slipstream.router.api.tensors.endpoint_checks import endpoint_problems
from slipstream.router.api.tensors.images.images_api import ImagesApi
from slipstream.router.api.tensors.models.endpoint_call import EndpointServer
from slipstream.router.api.tensors.models.endpoint_table import EndpointTable, NamedEndpoint
from slipstream.router.api.tensors.rerank.pair_scores import PairScores
from slipstream.router.api.tensors.rerank.rerank_api import RerankApi
from slipstream.router.api.tensors.text.endpoint_tokenizer import EndpointTokenizers
from slipstream.router.config.endpoints_config import EndpointsConfig, RerankEndpoint
from slipstream.router.config.kserve_config import RestrictedApis
from slipstream.router.http.reader import Request
from slipstream.router.observability.endpoint_metrics import EndpointCounts
from slipstream.router.tensor_memory.region_pool import RegionPool


class TensorEndpoints:
    """Adds the paths of the kinds that are configured, and knows what `/v1/models` shows of them."""

    def __init__(
        self,
        config: EndpointsConfig,
        tensors: KServeServer,
        pool: RegionPool | None,
        access: Access,
        bodies: BodyParser,
        ping_s: float | None = None,
        restricted: Sequence[RestrictedApis] = (),
    ) -> None:
        """`ping_s`: see `Pings`. Whether inference is `restricted` holds here as for KServe over HTTP."""
        self.table = EndpointTable(config)
        self._config = config
        restrictions = ApiRestrictions(restricted)
        self._server = EndpointServer(self.table, tensors.service, pool, access, bodies, tensors.loaded, restrictions)
        self._tokenizers = EndpointTokenizers()
        self._texts = TextModelApi(self._server, self._tokenizers, ping_s)

    @property
    def counts(self) -> EndpointCounts:
        return self._server.counts

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        vectors = TextVectors(self._tokenizers)
        if self._config.embeddings:
            EmbeddingsApi(self._server, vectors).add_to(routes)
        if self._config.rerank:
            RerankApi(self._server, PairScores(self._server, vectors, self._tokenizers)).add_to(routes)
        if self._config.images:
            ImagesApi(self._server).add_to(routes)
        if self._config.transcriptions:
            TranscriptionsApi(self._server).add_to(routes)

    def problems(self) -> list[str]:
        """What keeps endpoints from being served now."""
        return list(endpoint_problems(self.table, self._server.service))

    def text_names(self, caller: Caller) -> list[str]:
        """The names of models that answer chat, for the error of a request for another one."""
        return self.table.names("chat", caller)

    def serves_text(self, name: str) -> bool:
        return self.table.get("chat", name) is not None

    async def chat(self, request: Request, body: ChatRequest, exchange: ApiExchange) -> None:
        await self._texts.chat(request, body, exchange)

    async def complete(self, request: Request, body: CompletionRequest, exchange: ApiExchange) -> None:
        await self._texts.complete(request, body, exchange)

    def cards(self, caller: Caller) -> list[dict[str, Any]]:
        """What `/v1/models` shows of them."""
        cards = self.table.cards(caller)
        for card in cards:
            card["state"] = "serving" if self._is_served(card) else "loading"
        return cards

    def _is_served(self, card: dict[str, Any]) -> bool:
        endpoints = [endpoint for kind in card["kinds"] if (endpoint := self.table.get(kind, card["id"])) is not None]
        return all(self._server.service.is_ready(one.model, one.config.version) for one in map(self._by, endpoints))

    def _by(self, endpoint: NamedEndpoint) -> NamedEndpoint:
        """The endpoint whose model serves this one."""
        name = endpoint.config.embeddings if isinstance(endpoint.config, RerankEndpoint) else ""
        return (self.table.get("embeddings", name) if name else None) or endpoint
