"""OpenAI's chat and plain completions by tensor models and ensembles that take and give text."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import cast

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.generation.answer.answer import EVENT_STREAM, STREAM_HEADERS
from slipstream.router.api.generation.answer.answer_format import AnswerHead, TokenUsage, WholeChoice
from slipstream.router.api.generation.answer.pings import Pings
from slipstream.router.api.openai.answer.completion_format import CompletionFormat
from slipstream.router.api.openai.answer.formats import ChatFormat
from slipstream.router.api.openai.schema.chat_request import ChatRequest
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.api.tensors.chat.served_fields import TextBody, check_served, passed_fields, unsupported
from slipstream.router.api.tensors.chat.text_call import EndReason, TextCall, TextPiece
from slipstream.router.api.tensors.chat.text_prompt import prompt_of, system_text
from slipstream.router.api.tensors.models.endpoint_call import EndpointCall, EndpointServer
from slipstream.router.api.tensors.models.model_caller import ModelCaller
from slipstream.router.api.tensors.text.endpoint_tokenizer import EndpointTokenizers
from slipstream.router.api.tensors.text.text_source import TextSource
from slipstream.router.config.endpoints_config import ChatEndpoint
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.process.random_bytes import random_bytes

TextFormat = ChatFormat | CompletionFormat


class TextModelApi:
    """Serves the endpoints of its kind. A request has one answer. The methods raise HttpError."""

    def __init__(self, server: EndpointServer, tokenizers: EndpointTokenizers, ping_s: float | None) -> None:
        self._server = server
        self._tokenizers = tokenizers
        self._ping_s = ping_s

    async def chat(self, request: Request, body: ChatRequest, exchange: ApiExchange) -> None:
        """The next message of a conversation."""
        check_served(body)
        async with self._server.call("chat", body.model, request, exchange) as call:
            config = cast(ChatEndpoint, call.config)
            model = call.model()
            source = await self._source(model, config, "messages")
            if body.chat_template_kwargs and config.prompt != "template":
                raise unsupported("chat_template_kwargs")
            variables = body.template_variables
            prompt = await prompt_of(body.messages, config.prompt, source.tokenizer, model.endpoint, variables)
            form = ChatFormat(head_of(body.model, "chatcmpl-"), None, False, body.wants_usage)
            await self._answer(
                call, TextAnswer(body, form, source, prompt, system_text(body.messages)), model, exchange
            )

    async def complete(self, request: Request, body: CompletionRequest, exchange: ApiExchange) -> None:
        """The continuation of a text."""
        check_served(body)
        if len(body.texts) != 1:
            raise unsupported("prompt")
        async with self._server.call("chat", body.model, request, exchange) as call:
            model = call.model()
            source = await self._source(model, cast(ChatEndpoint, call.config), "prompt")
            form = CompletionFormat(head_of(body.model, "cmpl-"), None, False, body.wants_usage)
            await self._answer(call, TextAnswer(body, form, source, body.texts[0]), model, exchange)

    async def _source(self, model: ModelCaller, config: ChatEndpoint, param: str) -> TextSource:
        return await TextSource.of(self._tokenizers, model, param, folder=config.tokenizer)

    async def _answer(self, call: EndpointCall, answer: TextAnswer, model: ModelCaller, exchange: ApiExchange) -> None:
        config = cast(ChatEndpoint, call.config)
        text_call = TextCall(model, config, call.tensors(model, config.inputs), call.layout(model))
        await answer.begin()
        call.admit(1, answer.num_prompt_tokens)
        try:
            if answer.body.stream:
                await self._stream(answer, text_call, exchange)
            else:
                async with contextlib.aclosing(answer.pieces(text_call)) as pieces:
                    text = "".join([piece.text async for piece in pieces])
                choice = WholeChoice(0, text, [], answer.reason)
                exchange.respond(200, answer.form.whole([choice], await answer.usage(text)))
        finally:
            call.used(answer.num_prompt_tokens, answer.num_output_tokens)

    async def _stream(self, answer: TextAnswer, text_call: TextCall, exchange: ApiExchange) -> None:
        form, parts = answer.form, list[str]()
        exchange.start(200, EVENT_STREAM, STREAM_HEADERS)
        try:
            with Pings(exchange, self._ping_s, lambda: len(parts), form.ping):
                async with contextlib.aclosing(answer.pieces(text_call)) as pieces:
                    async for piece in pieces:
                        parts.append(piece.text)
                        if piece.text:
                            exchange.write(form.text_chunk(0, piece.text, []))
                        if exchange.congested:
                            await exchange.drain()
            usage = await answer.usage("".join(parts))
            exchange.finish(form.final_chunk(0, "", [], answer.reason) + form.stream_end(usage, b""))
        except HttpError as error:
            if not exchange.head_sent:
                raise
            exchange.finish(form.failure(error))


class TextAnswer:
    """The answer to one request as it grows, and what it has used. Tokens are counted by the model, or else by the
    tokenizer of the endpoint, or else not at all."""

    def __init__(self, body: TextBody, form: TextFormat, source: TextSource, prompt: str, system: str = "") -> None:
        self.body = body
        self.form = form
        self.reason: EndReason = "stop"
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self._source = source
        self._prompt = prompt
        self._system = system
        self._is_counted = False

    async def begin(self) -> None:
        self.num_prompt_tokens = await self._source.count([self._prompt])

    async def pieces(self, call: TextCall) -> AsyncGenerator[TextPiece, None]:
        fields = passed_fields(self.body)
        responses = call.pieces(self._prompt, fields, streams=bool(self.body.stream), system=self._system)
        async with contextlib.aclosing(responses):
            async for piece in responses:
                self.reason = piece.reason or self.reason
                if piece.prompt_tokens is not None:
                    self.num_prompt_tokens = piece.prompt_tokens
                if piece.completion_tokens is not None:
                    self._is_counted = True
                    self.num_output_tokens += piece.completion_tokens
                yield piece

    async def usage(self, text: str) -> TokenUsage:
        """Once the answer is complete."""
        if not self._is_counted and text:
            self.num_output_tokens = await self._source.count([text])
        return TokenUsage(self.num_prompt_tokens, self.num_output_tokens, 0)


def head_of(model: str, prefix: str) -> AnswerHead:
    return AnswerHead(f"{prefix}{random_bytes(16).hex()}", int(time.time()), model)
