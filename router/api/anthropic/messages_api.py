"""The endpoints of the Messages API."""

from __future__ import annotations

import time

import orjson

from slipstream.router.api.anthropic.chat_translation import chat_of, reword, with_messages
from slipstream.router.api.anthropic.error_form import no_threads
from slipstream.router.api.anthropic.limit_headers import anthropic_lines
from slipstream.router.api.anthropic.message_format import AnthropicMessage, MessageHead
from slipstream.router.api.anthropic.request_body import CountTokensRequest, MessagesRequest
from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.generation.generation_batch import GenerationBatch, ReceivedRequest
from slipstream.router.api.generation.generation_flow import GenerationFlow
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.dispatch.queue.work_queue import MAX_PRIORITY
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request


class MessagesApi:
    """Anthropic's `/v1/messages`. What it answers is generated as a chat."""

    def __init__(self, flow: GenerationFlow) -> None:
        self._flow = flow

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("POST", "/v1/messages", self.create, body=MessagesRequest)
        routes.add("POST", "/v1/messages/count_tokens", self.count_tokens, body=CountTokensRequest)

    async def create(self, request: Request, exchange: ApiExchange) -> None:
        """The next message of a conversation."""
        arrived_s = time.monotonic()
        exchange.context.limit_lines = anthropic_lines
        try:
            body = self._flow.parse(request, exchange, MessagesRequest)
            if body.thread is not None:
                raise no_threads()
            chat = chat_of(body)
            received = self._flow.received(chat, exchange, arrived_s, "msg_")
            with self._flow.stages:
                await self._flow.serve(exchange, received, self._batch(body, received, chat))
        except HttpError as error:
            reword(error)
            raise

    async def count_tokens(self, request: Request, exchange: ApiExchange) -> None:
        """How many tokens the prompt of a message would have."""
        try:
            body = self._flow.parse(request, exchange, CountTokensRequest)
            model = self._flow.lookup.of(body.model, exchange.context.caller, MAX_PRIORITY).model
            chat = with_messages(chat_of(body), body, model.tokenizer.chat_template)
            packed_ids = await self._flow.preparation.prompt_of_chat(model, chat, exchange.context.caller.own(""))
        except HttpError as error:
            reword(error)
            raise
        exchange.respond(200, orjson.dumps({"input_tokens": len(packed_ids) // 4}))

    async def _batch(self, body: MessagesRequest, received: ReceivedRequest, chat: ChatRequest) -> GenerationBatch:
        """The generation, whose answer is a message. Raises HttpError."""
        whole_chat = with_messages(chat, body, received.model.tokenizer.chat_template)
        batch = await self._flow.preparation.of_chat(received, whole_chat)
        head = MessageHead(
            received.head,
            received.exchange_id,
            batch.num_prompt_tokens,
            ends_at_context=batch.clamped_to is not None,
            shows_thinking=body.thinking is None or body.thinking.display != "omitted",
            is_edited=body.context_management is not None,
        )
        form = AnthropicMessage(head)
        return GenerationBatch(received, batch.prompts, "messages", form, batch.pieces, batch.reading)
