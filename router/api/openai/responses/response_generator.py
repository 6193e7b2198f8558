"""Generates responses, as chats."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.generation.generation_batch import GenerationBatch, ReceivedRequest
from slipstream.router.api.generation.generation_flow import GenerationFlow
from slipstream.router.api.openai.responses.answer.output_items import OutputItems
from slipstream.router.api.openai.responses.answer.response_document import ResponseDocument
from slipstream.router.api.openai.responses.answer.response_format import ResponsesFormat, number_of
from slipstream.router.api.openai.responses.answer.tokenwise_output import TokenwiseReading
from slipstream.router.api.openai.responses.answer_keeper import ResponseKeeper
from slipstream.router.api.openai.responses.body.chat_translation import chat_of, in_brackets, in_words_of_responses
from slipstream.router.api.openai.responses.body.input_history import PlacedItem, messages_of
from slipstream.router.api.openai.responses.body.request_body import ResponsesPrompt, ResponsesRequest
from slipstream.router.api.openai.responses.body.truncation import MAX_ATTEMPTS, shortened
from slipstream.router.api.openai.responses.response_store import HistoryLimit, ResponseStore, as_items, owner_of
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.messages import ChatMessage
from slipstream.router.http.failover.journal import Identity
from slipstream.router.http.failover.stream_checkpoint import StreamCheckpoint
from slipstream.router.http.http_error import HttpError, RequestError
from slipstream.router.http.reader import Request

LEFT_OUT_HEADER = "x-slipstream-left-out-tools"
ID_PREFIX = "resp_"

Body = TypeVar("Body", bound=ResponsesPrompt)


class ReadConversation(NamedTuple):
    """What a request is about: the items of its own, the messages of all, and the conversation, or the first response
    of the chain, that it goes on from."""

    own: Sequence[PlacedItem]
    messages: list[ChatMessage]
    root: str | None


class ResponseGenerator:
    """One for all requests of a process."""

    def __init__(self, flow: GenerationFlow, store: ResponseStore) -> None:
        self._flow = flow
        self._store = store

    async def serve(self, request: Request, exchange: ApiExchange) -> None:
        """Answers a request whose response is generated now. Raises HttpError."""
        arrived_s = time.monotonic()
        body = self.parse(request, exchange, ResponsesRequest)
        try:
            await self.generate(body, exchange, arrived_s)
        except HttpError as error:
            raise in_words_of_responses(error, body.tool_set.places) from error

    async def generate(self, body: ResponsesRequest, exchange: ApiExchange, arrived_s: float) -> None:
        """Raises HttpError, in the words of chat completions."""
        if body.tool_set.left_out:
            exchange.add_header(LEFT_OUT_HEADER, ", ".join(dict.fromkeys(body.tool_set.left_out)))
        if body.stream and body.wants_logprobs:
            exchange.context.checkpoint.spoil()  # the last events repeat all of them, and they are not noted
        own, messages, root = await self.conversation(body, exchange)
        chat = chat_of(body, messages, exchange.context.session or root)
        received = self.received(chat, exchange, arrived_s)
        with self._flow.stages:
            await self._flow.serve(exchange, received, self._batch(body, received, chat, own, exchange))

    def received(self, chat: ChatRequest, exchange: ApiExchange, arrived_s: float) -> ReceivedRequest:
        """The request as it arrived, with the id of its response. Raises HttpError."""
        return self._flow.received(chat, exchange, arrived_s, ID_PREFIX)

    async def conversation(self, body: ResponsesPrompt, exchange: ApiExchange) -> ReadConversation:
        """Raises HttpError."""
        owner, root = owner_of(exchange), body.conversation_id
        limit = HistoryLimit.of(self._flow.lookup.longest(), body.truncation)
        before: list[PlacedItem] = []
        if body.previous_response_id is not None:
            self._store.check_is_there("previous_response_id")
            root, items = await self._store.chain(body.previous_response_id, owner, limit)
            before = [PlacedItem(item, "previous_response_id") for item in as_items(items)]
        elif body.conversation_id is not None:
            self._store.check_is_there("conversation")
            begun = begun_before(exchange.context.checkpoint)
            items = await self._store.conversation_items(body.conversation_id, owner, limit, begun)
            before = [PlacedItem(item, "conversation") for item in as_items(items)]
        own = await self._own_items(body, owner)
        messages = messages_of([*before, *own], body.instructions)
        if not messages:
            raise HttpError(400, "'input' is required.", param="input", code="missing_required_parameter")
        return ReadConversation(own, messages, root)

    async def _own_items(self, body: ResponsesPrompt, owner: str) -> Sequence[PlacedItem]:
        if body.input is None:
            return ()
        if isinstance(body.input, str):
            return [PlacedItem(item, "input") for item in as_items([{"role": "user", "content": body.input}])]
        return await self._store.resolved(body.input, owner, "input")

    async def _batch(
        self,
        body: ResponsesRequest,
        received: ReceivedRequest,
        chat: ChatRequest,
        own: Sequence[PlacedItem],
        exchange: ApiExchange,
    ) -> GenerationBatch:
        """The generation, whose answer is a response. Raises HttpError."""
        batch = await self._fitting(body, received, chat)
        is_stored = body.wants_store and self._store.is_there
        document = ResponseDocument(body, received.head, received.model.defaults, is_stored)
        summarizes = body.summary_kind is not None
        items = OutputItems(number_of(received.head), body.tool_set, body.wants_sealed_reasoning, summarizes)
        pieces = batch.reading.pieces if batch.reading is not None else batch.pieces
        form = ResponsesFormat(document, items, pieces)
        keeper = None
        if is_stored or body.conversation_id is not None:
            items_of_request = [placed.item for placed in own]
            keeper = ResponseKeeper(
                self._store, form, received, body, items_of_request, is_stored, events_kept=exchange.drain
            )
        reading = TokenwiseReading(batch.reading, batch.pieces)
        return GenerationBatch(received, batch.prompts, "input", form, batch.pieces, reading, keeper)

    async def _fitting(self, body: ResponsesRequest, received: ReceivedRequest, chat: ChatRequest) -> GenerationBatch:
        """The prompt; with `truncation: auto`, without the oldest messages if it has no room for them."""
        for attempt in range(MAX_ATTEMPTS):
            try:
                return await self._flow.preparation.of_chat(received, chat)
            except RequestError as error:
                if body.truncation != "auto" or error.error.kind != "prompt_too_long" or attempt == MAX_ATTEMPTS - 1:
                    raise
                figures = {figure.name: int(figure.value) for figure in error.error.figures}
                room = figures["max_model_len"] - max(figures["num_wanted_tokens"], 1)
                messages = shortened(chat.messages, figures["num_prompt_tokens"], room)
                if messages is None:
                    raise
                chat = chat.model_copy(update={"messages": messages})
        raise AssertionError("the last attempt returns or raises")

    def parse(self, request: Request, exchange: ApiExchange, form: type[Body]) -> Body:
        """The body. Raises HttpError; one about a model that is not named says which there are."""
        try:
            return self._flow.bodies.parse(request, exchange, form)
        except HttpError as error:
            if (error.param, error.code) == ("model", "missing_required_parameter"):
                raise self._flow.lookup.missing(exchange.context.caller) from error
            raise in_brackets(error) from error


def begun_before(checkpoint: StreamCheckpoint) -> Identity | None:
    """That of an answer which another router had begun, and this one goes on with."""
    model = checkpoint.model()
    return None if model is None else checkpoint.identity(model)
