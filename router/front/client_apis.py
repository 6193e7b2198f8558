"""The APIs that every process serves to clients: OpenAI's and Anthropic's, with files, batches and stored responses."""

from __future__ import annotations

from contextlib import AsyncExitStack

from slipstream.router.access.access import Access
from slipstream.router.api.anthropic.messages_api import MessagesApi
from slipstream.router.api.anthropic.model_pages import ModelPagesOfBothApis
from slipstream.router.api.exchange_context import ApiRoutes
from slipstream.router.api.generation.generation_flow import GenerationFlow, SubmitService
from slipstream.router.api.openai.batches.batch_runner import BatchRunner
from slipstream.router.api.openai.batches.batches_api import BatchesApi
from slipstream.router.api.openai.batches.line_server import RoutedLines
from slipstream.router.api.openai.files.files_api import FilesApi
from slipstream.router.api.openai.openai_api import OpenAiApi
from slipstream.router.api.openai.responses.background_responses import BackgroundResponses
from slipstream.router.api.openai.responses.conversations_api import ConversationsApi
from slipstream.router.api.openai.responses.response_generator import ResponseGenerator
from slipstream.router.api.openai.responses.response_store import ResponseStore
from slipstream.router.api.openai.responses.responses_api import ResponsesApi
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.front.tensor_api import EndpointApi
from slipstream.router.observability.front_counts import FrontMetrics
from slipstream.router.store.object_store import ObjectStore


class ClientApis:
    """Adds the paths of all of them to `routes`, over which the lines of batches are served, too."""

    def __init__(
        self,
        catalog: Catalog,
        service: SubmitService,
        metrics: FrontMetrics,
        access: Access,
        config: RouterConfig,
        routes: ApiRoutes,
    ) -> None:
        self.store = ObjectStore(config.store, metrics.store_errors)
        self.ping_s = config.http.sse_ping_s
        self.flow = GenerationFlow(catalog, service, metrics, access, config.api, self.ping_s)
        self._routes = routes
        self._models = ModelPagesOfBothApis(catalog, service, self.flow.lookup)
        self._models.add_to(routes)
        self._openai = OpenAiApi(self.flow, access)
        self._openai.add_to(routes)
        MessagesApi(self.flow).add_to(routes)
        FilesApi(self.store).add_to(routes)
        self._background = self._serve_responses(access, config)
        self._batches = self._serve_batches(access, config, metrics)

    def _serve_responses(self, access: Access, config: RouterConfig) -> BackgroundResponses:
        responses = ResponseStore(self.store)
        generator = ResponseGenerator(self.flow, responses)
        background = BackgroundResponses(self.store, responses, generator, access.keys, config.background, self.ping_s)
        ResponsesApi(self.flow, responses, generator, background).add_to(self._routes)
        ConversationsApi(self.flow.bodies, responses).add_to(self._routes)
        return background

    def _serve_batches(self, access: Access, config: RouterConfig, metrics: FrontMetrics) -> BatchRunner:
        lines = RoutedLines(self._routes, access.keys)
        batches = BatchRunner(self.store, lines, config.batches, metrics.batch_lines)
        BatchesApi(self.store, batches, self._routes, config.batches.max_tenant_unfinished).add_to(self._routes)
        return batches

    def open(self, cleanup: AsyncExitStack, *, runs_jobs: bool) -> None:
        """Begins to open the store, and then, if this process `runs_jobs`, the batches and the responses in the
        background in it; `cleanup` ends that. Calls of the store wait for it a while, so that nothing else has to."""
        self.store.start()
        cleanup.push_async_callback(self.store.close)
        if runs_jobs:
            self._batches.start()
            cleanup.push_async_callback(self._batches.stop)
            self._background.start()
            cleanup.push_async_callback(self._background.stop)

    def serve_endpoints(self, api: EndpointApi) -> None:
        """Serves tensor models at endpoints of OpenAI's shape from now on."""
        api.add_to(self._routes)
        self._models.others = api
        self._openai.text_models = api
        self.flow.lookup.other_names = api.text_names
