"""The endpoints of responses."""

from __future__ import annotations

import time

import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.generation.generation_flow import GenerationFlow
from slipstream.router.api.openai.responses.background_responses import BackgroundResponses
from slipstream.router.api.openai.responses.body.chat_translation import (
    chat_of_prompt,
    in_words_of_responses,
)
from slipstream.router.api.openai.responses.body.request_body import (
    InputTokensRequest,
    ResponsesRequest,
)
from slipstream.router.api.openai.responses.event_replay import REPLAY_FIELDS, ReplayQuery
from slipstream.router.api.openai.responses.item_pages import item_page, wanted_items
from slipstream.router.api.openai.responses.response_generator import ResponseGenerator
from slipstream.router.api.openai.responses.response_store import HistoryLimit, ResponseStore, owner_of
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.dispatch.queue.work_queue import MAX_PRIORITY
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request


class ResponsesApi:
    """OpenAI's `/v1/responses`. What it answers is generated as a chat."""

    def __init__(
        self,
        flow: GenerationFlow,
        store: ResponseStore,
        generator: ResponseGenerator,
        background: BackgroundResponses,
    ) -> None:
        self._flow = flow
        self._store = store
        self._generator = generator
        self._background = background

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("POST", "/v1/responses", self.create, body=ResponsesRequest)
        routes.add("POST", "/v1/responses/input_tokens", self.input_tokens, body=InputTokensRequest)
        routes.add("POST", "/v1/responses/compact", self.compact)
        paging = ("after", "limit", "order", "include")
        routes.add_item("GET", "/v1/responses/", "/input_items", self.input_items, query=paging)
        routes.add_item("POST", "/v1/responses/", "/cancel", self.cancel)
        routes.add_item("GET", "/v1/responses/", "", self.retrieve, query=REPLAY_FIELDS)
        routes.add_item("DELETE", "/v1/responses/", "", self.delete)

    async def create(self, request: Request, exchange: ApiExchange) -> None:
        """The next items of a conversation."""
        arrived_s = time.monotonic()
        body = self._generator.parse(request, exchange, ResponsesRequest)
        try:
            if body.background:
                await self._background.create(body, request, exchange, arrived_s)
            else:
                await self._generator.generate(body, exchange, arrived_s)
        except HttpError as error:
            raise in_words_of_responses(error, body.tool_set.places) from error

    async def input_tokens(self, request: Request, exchange: ApiExchange) -> None:
        """How many tokens the prompt of a response would have."""
        body = self._generator.parse(request, exchange, InputTokensRequest)
        try:
            caller, lookup = exchange.context.caller, self._flow.lookup
            model = (
                lookup.of(body.model, caller, MAX_PRIORITY).model
                if body.model
                else lookup.default(caller, MAX_PRIORITY)
            )
            messages = (await self._generator.conversation(body, exchange)).messages
            fields = chat_of_prompt(body, messages, model.name)
            chat = ChatRequest.model_construct(set(fields), **fields)
            chat.__dict__["tool_use"] = body.tool_use  # in place of the cached property
            packed_ids = await self._flow.preparation.prompt_of_chat(model, chat, caller.own(""))
        except HttpError as error:
            raise in_words_of_responses(error, body.tool_set.places) from error
        answer = {"object": "response.input_tokens", "input_tokens": len(packed_ids) // 4}
        exchange.respond(200, orjson.dumps(answer))

    async def compact(self, request: Request, exchange: ApiExchange) -> None:
        """Refused: a summary would have to be the model's own, which a client can ask for itself."""
        message = (
            "Compaction is not supported: ask the model for a summary, or let `truncation: auto` leave out the oldest "
            "messages."
        )
        raise HttpError(400, message, code="unsupported_endpoint")

    async def retrieve(self, request: Request, exchange: ApiExchange, response_id: str) -> None:
        """A stored response, whole or, if it runs or ran in the background as a stream, its events."""
        wanted = ReplayQuery.of(request.query)
        if wanted.stream:
            await self._background.replay(exchange, response_id, wanted.starting_after)
            return
        stored = await self._store.response(response_id, owner_of(exchange))
        exchange.respond(200, orjson.dumps(stored.response))

    async def delete(self, request: Request, exchange: ApiExchange, response_id: str) -> None:
        """Remove a stored response. One that runs in the background ends."""
        exchange.refuse_if_repeated()
        await self._store.delete_response(response_id, owner_of(exchange))
        await self._background.end(response_id, owner_of(exchange))
        exchange.respond(200, orjson.dumps({"id": response_id, "object": "response", "deleted": True}))

    async def cancel(self, request: Request, exchange: ApiExchange, response_id: str) -> None:
        """End a response that runs in the background."""
        exchange.respond(200, orjson.dumps(await self._background.cancel(response_id, owner_of(exchange))))

    async def input_items(self, request: Request, exchange: ApiExchange, response_id: str) -> None:
        """The items that a stored response was made from, with those of the responses before it."""
        wanted = wanted_items(request)
        owner = owner_of(exchange)
        stored = await self._store.response(response_id, owner)
        previous = stored.response.get("previous_response_id")
        limit = HistoryLimit.of(self._flow.lookup.longest(), None)
        before = (await self._store.chain(previous, owner, limit)).items if previous else []
        exchange.respond(200, orjson.dumps(item_page([*before, *stored.input], wanted)))
