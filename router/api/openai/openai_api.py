"""The endpoints of the OpenAI API. Each request is checked, tokenised, submitted and answered."""

from __future__ import annotations

import time

import orjson

from slipstream.router.access.access import Access
from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.generation.generation_flow import GenerationFlow
from slipstream.router.api.openai.other_models import TextModels
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.api.openai.token_pages import TokenPages
from slipstream.router.http.reader import Request


class OpenAiApi:
    """Serves the models of a catalog. A client can ask for a certain version of one as `model@version`."""

    def __init__(self, flow: GenerationFlow, access: Access) -> None:
        self._flow = flow
        self._access = access
        self.text_models: TextModels | None = None

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("POST", "/v1/chat/completions", self.chat_completions, body=ChatRequest)
        routes.add("POST", "/v1/completions", self.completions, body=CompletionRequest)
        routes.add("GET", "/v1/usage", self.usage)
        TokenPages(self._flow.lookup, self._flow.bodies).add_to(routes)

    async def usage(self, request: Request, exchange: ApiExchange) -> None:
        """What the caller's key has used of each model; for an administrator, what all keys have used."""
        accounts = [
            {
                "key": account.key,
                "tenant": account.tenant,
                "model": account.model,
                "num_requests": counts.num_requests,
                "num_errors": counts.num_errors,
                "prompt_tokens": counts.num_prompt_tokens,
                "cached_tokens": counts.num_cached_tokens,
                "completion_tokens": counts.num_output_tokens,
                "total_tokens": counts.num_tokens,
            }
            for account, counts in self._access.usage_of(exchange.context.caller)
        ]
        exchange.respond(200, orjson.dumps({"object": "list", "data": accounts}))

    async def chat_completions(self, request: Request, exchange: ApiExchange) -> None:
        """The next message of a conversation."""
        arrived_s = time.monotonic()
        body = self._flow.parse(request, exchange, ChatRequest)
        if self.text_models is not None and self.text_models.serves_text(body.model):
            return await self.text_models.chat(request, body, exchange)
        received = self._flow.received(body, exchange, arrived_s, "chatcmpl-")
        with self._flow.stages:
            await self._flow.serve(exchange, received, self._flow.preparation.of_chat(received, body))

    async def completions(self, request: Request, exchange: ApiExchange) -> None:
        """The continuation of a text."""
        arrived_s = time.monotonic()
        body = self._flow.parse(request, exchange, CompletionRequest)
        if self.text_models is not None and self.text_models.serves_text(body.model):
            return await self.text_models.complete(request, body, exchange)
        received = self._flow.received(body, exchange, arrived_s, "cmpl-")
        with self._flow.stages:
            await self._flow.serve(exchange, received, self._flow.preparation.of_completion(received, body))
