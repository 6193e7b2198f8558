"""vLLM's endpoints that turn text into token ids and back, for clients that count tokens or have no tokenizer."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

import orjson
from pydantic import BeforeValidator, Field, model_validator

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.generation.model_lookup import ModelLookup
from slipstream.router.api.generation.prompts import PromptReader
from slipstream.router.api.openai.body.parsing import BodyParser
from slipstream.router.api.openai.body.sampling import check_token_ids
from slipstream.router.api.openai.schema.fields import Label, Strict, TokenId, Unserved, field_error, only
from slipstream.router.api.openai.schema.messages import ChatMessage, not_too_many_parts
from slipstream.router.api.openai.schema.tools import MAX_TOOLS, ToolFields, ToolUse, check_use, use_of
from slipstream.router.api.openai.schema.vllm_fields import TemplateKwargs
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.dispatch.queue.work_queue import MAX_PRIORITY
from slipstream.router.http.reader import Request
from slipstream.router.protocol.messages import unpack_ids


class TokenizeRequest(Strict):
    """Body of POST /tokenize: a text as it is, or a conversation, for which the chat template is used."""

    model: Label | None = None
    prompt: str | None = None
    messages: (
        Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True), BeforeValidator(not_too_many_parts)] | None
    ) = None
    add_special_tokens: bool | None = None  # default: for a text only, because templates write their own
    return_token_strs: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    chat_template: Unserved = None
    add_generation_prompt: Annotated[Any, only(True)] = None
    continue_final_message: Annotated[Any, only(False)] = None
    mm_processor_kwargs: Annotated[Any, only({})] = None
    tools: Annotated[list[ToolFields], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None

    @model_validator(mode="after")
    def _one_of_text_and_messages(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise field_error("prompt", "or `messages` is required, and not both")
        if self.messages is not None and self.add_special_tokens:
            raise field_error("add_special_tokens", "is only supported for a `prompt`")
        if self.tools and self.messages is None:
            raise field_error("tools", "is only allowed with `messages`")
        if self.tool_use is not None:
            check_use(self.tool_use)
        return self

    @cached_property
    def tool_use(self) -> ToolUse | None:
        return use_of(self.tools, None, is_parallel=True)


class DetokenizeRequest(Strict):
    """Body of POST /detokenize."""

    model: Label | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class TokenPages:
    """A request may leave out its `model` if only one is served."""

    def __init__(self, lookup: ModelLookup, bodies: BodyParser) -> None:
        self._lookup = lookup
        self._bodies = bodies

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("POST", "/tokenize", self.tokenize, body=TokenizeRequest)
        routes.add("POST", "/detokenize", self.detokenize, body=DetokenizeRequest)

    async def tokenize(self, request: Request, exchange: ApiExchange) -> None:
        """The token ids of a text or a conversation. Raises HttpError 400 for one that is far too long for the model,
        because tokenising it would take long."""
        body = self._bodies.parse(request, exchange, TokenizeRequest)
        model = self._model_of(body.model, exchange)
        limit = self._lookup.limit_of(model.name)
        prompts = PromptReader(model.tokenizer)
        if body.messages is not None:
            tools = body.tool_use.tools if body.tool_use is not None else ()
            variables = body.chat_template_kwargs or {}
            tenant = exchange.context.caller.own("")
            packed_ids = await prompts.of_chat(body.messages, limit, variables, tools, model.outputs, tenant=tenant)
        else:
            adds_start = body.add_special_tokens is not False
            packed_ids = await prompts.of_any_text(body.prompt or "", limit, adds_start)
        token_ids = list(unpack_ids(packed_ids))
        answer = {
            "count": len(token_ids),
            "max_model_len": limit,
            "tokens": token_ids,
            "token_strs": await model.tokenizer.names_of(token_ids) if body.return_token_strs else None,
        }
        exchange.respond(200, orjson.dumps(answer))

    async def detokenize(self, request: Request, exchange: ApiExchange) -> None:
        """The text of token ids, with control tokens."""
        body = self._bodies.parse(request, exchange, DetokenizeRequest)
        tokenizer = self._model_of(body.model, exchange).tokenizer
        check_token_ids("tokens", body.tokens, tokenizer.vocab_size)
        (text,) = await tokenizer.decode([body.tokens], skip_special_tokens=False)
        exchange.respond(200, orjson.dumps({"prompt": text}))

    def _model_of(self, name: str | None, exchange: ApiExchange) -> ServedModel:
        """Raises HttpError."""
        caller = exchange.context.caller
        return self._lookup.of(name, caller, MAX_PRIORITY).model if name else self._lookup.default(caller, MAX_PRIORITY)
