"""The endpoints of the OpenAI API. Each request is checked, tokenised, submitted and answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import orjson

from slipstream.router.access.access import Access, Permit
from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.openai.answer import Answer
from slipstream.router.api.openai.body.parsing import BodyParser
from slipstream.router.api.openai.body.sampling import SEED_MASK, check_token_ids, sampling_params
from slipstream.router.api.openai.body.schema import ChatRequest, CompletionRequest, GenerationFields
from slipstream.router.api.openai.body.structured_output import RequestGrammars
from slipstream.router.api.openai.choice import Choice
from slipstream.router.api.openai.failures import as_http_error
from slipstream.router.api.openai.formats import AnswerHead, ChatFormat, CompletionFormat
from slipstream.router.api.openai.generation_batch import (
    GenerationBatch,
    Prompt,
    ReceivedRequest,
    span_attributes,
    used_by,
)
from slipstream.router.api.openai.output_text import OutputText
from slipstream.router.api.openai.preparation_stages import PreparationStages
from slipstream.router.api.openai.prompts import DEFAULT_COMPLETION_TOKENS, PromptReader, room
from slipstream.router.api.openai.token_pages import TokenPages
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.config.router_config import ApiConfig
from slipstream.router.dispatch.queue.work_queue import MAX_PRIORITY
from slipstream.router.http.http_error import HttpError, RequestError
from slipstream.router.http.reader import Request
from slipstream.router.observability.front_counts import FrontMetrics
from slipstream.router.protocol.generation import AdmissionError, GenerateRequest
from slipstream.router.protocol.messages import GrammarSpec, SamplingParams, pack_ids
from slipstream.router.requests.rejections import RejectedRequest
from slipstream.router.requests.stream import GenerationStream

MAX_TOKENS_HEADER = "x-slipstream-max-tokens"
SEED_STEP = 0x9E3779B97F4A7C15  # between the seeds of a request's prompts, to keep them far apart in 63 bits
MAX_EXPLAINED_CHOICES = 16  # in one answer; the explanation of each can be tens of KiB


class SubmitService(Protocol):
    """What the API needs of `GenerationService`."""

    def max_model_len_of(self, model: str) -> int | None: ...
    def versions_of(self, model: str) -> Sequence[str]: ...
    def submit(self, request: GenerateRequest) -> GenerationStream: ...
    def note_refused(self, refused: RejectedRequest) -> None: ...


class OpenAiApi:
    """Serves one model. A client can ask for a certain version of it as `model@version`."""

    def __init__(
        self,
        model: ServedModel,
        service: SubmitService,
        metrics: FrontMetrics,
        access: Access,
        config: ApiConfig,
        ping_s: float | None = None,
    ) -> None:
        """`ping_s`: see `Pings`."""
        self._ping_s = ping_s
        self._model = model.name
        self._tokenizer = model.tokenizer
        self._service = service
        self._metrics = metrics
        self._access = access
        self._defaults = model.defaults
        self._prompts = PromptReader(model.tokenizer)
        self._bodies = BodyParser(config.unknown_fields == "ignore", metrics.ignored_fields)
        self._clamps = config.overlong == "clamp"
        self._grammars = RequestGrammars()
        self._stages = PreparationStages()
        self._created_s = int(time.time())

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("GET", "/v1/models", self.models)
        routes.add_item("GET", "/v1/models/", "", self.model)
        routes.add("POST", "/v1/chat/completions", self.chat_completions, body=ChatRequest)
        routes.add("POST", "/v1/completions", self.completions, body=CompletionRequest)
        routes.add("GET", "/v1/usage", self.usage)
        TokenPages(self._model, self._tokenizer, self._prompts, self._service, self._bodies, self._check_model).add_to(
            routes
        )

    async def models(self, request: Request, exchange: ApiExchange) -> None:
        """The served model; during an update also each of its versions."""
        versions = self._service.versions_of(self._model)
        names = [self._model, *(f"{self._model}@{version}" for version in versions if len(versions) > 1)]
        exchange.respond(200, orjson.dumps({"object": "list", "data": list(map(self._model_card, names))}))

    async def model(self, request: Request, exchange: ApiExchange, name: str) -> None:
        """One served model."""
        self._version_of(name)
        exchange.respond(200, orjson.dumps(self._model_card(name)))

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
        max_model_len = self._service.max_model_len_of(self._model)
        body = self._bodies.parse(request, exchange, ChatRequest, max_model_len)
        received = self._received(body, exchange, arrived_s, "chatcmpl-")
        with self._stages:
            await self._serve(exchange, received, self._chat_batch(received, body, max_model_len))

    async def completions(self, request: Request, exchange: ApiExchange) -> None:
        """The continuation of a text."""
        arrived_s = time.monotonic()
        max_model_len = self._service.max_model_len_of(self._model)
        body = self._bodies.parse(request, exchange, CompletionRequest, max_model_len)
        received = self._received(body, exchange, arrived_s, "cmpl-")
        with self._stages:
            await self._serve(exchange, received, self._completion_batch(received, body, max_model_len))

    async def _chat_batch(
        self, received: ReceivedRequest, body: ChatRequest, max_model_len: int | None
    ) -> GenerationBatch:
        limit = self._prompts.limit(max_model_len)
        await self._stages.next_stage()
        packed_ids = await self._prompts.of_chat(body.messages, limit, body.template_variables)
        grammar = await self._grammars.of(body)
        asked_for = self._defaults.max_tokens(body.stated_max_tokens)
        default = self._defaults.default_max_tokens(None)
        max_tokens = room(packed_ids, limit, asked_for, default, "messages", self._clamps)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        prompts = [Prompt(packed_ids, self._sampling(body, max_tokens, logprobs, grammar, received.seed))]
        form = ChatFormat(received.head, self._tokenizer.pieces, logprobs is not None, body.wants_usage)
        return GenerationBatch(received, prompts, "messages", form)

    async def _completion_batch(
        self, received: ReceivedRequest, body: CompletionRequest, max_model_len: int | None
    ) -> GenerationBatch:
        for token_ids in body.id_lists:
            check_token_ids("prompt", token_ids, self._tokenizer.vocab_size)
        await self._stages.next_stage()
        grammar = await self._grammars.of(body)
        prompts: list[Prompt] = []
        limit = self._prompts.limit(max_model_len)
        id_lists = [*map(pack_ids, body.id_lists)] or await self._prompts.of_texts(body.texts, limit, "prompt")
        asked_for = self._defaults.max_tokens(body.max_tokens)
        default = self._defaults.default_max_tokens(DEFAULT_COMPLETION_TOKENS)
        for packed_ids in id_lists:
            max_tokens = room(packed_ids, limit, asked_for, default, "prompt", self._clamps)
            seed = (received.seed + len(prompts) * SEED_STEP) & SEED_MASK
            prompts.append(Prompt(packed_ids, self._sampling(body, max_tokens, body.logprobs, grammar, seed)))
        if body.echo:
            texts = body.texts or await self._tokenizer.decode(body.id_lists)
            prompts = [prompt._replace(text=text) for prompt, text in zip(prompts, texts, strict=True)]
        form = CompletionFormat(received.head, self._tokenizer.pieces, body.logprobs is not None, body.wants_usage)
        return GenerationBatch(received, prompts, "prompt", form)

    def _received(
        self, body: GenerationFields, exchange: ApiExchange, arrived_s: float, prefix: str
    ) -> ReceivedRequest:
        """The request as it arrived. Raises HttpError if there is no such model or the caller may not use it."""
        version = self._version_of(body.model)
        context = exchange.context
        context.caller.check(self._model, body.priority or 0)
        identity = context.checkpoint.identity()
        head = AnswerHead(
            f"{prefix}{identity.number:032x}", identity.created_s, self._model, service_tier=body.served_tier
        )
        return ReceivedRequest(
            body, version, exchange.request_id, context.caller, context.trace_id, arrived_s, head, identity.seed
        )

    def _check_model(self, exchange: ApiExchange, name: str) -> None:
        """Raises HttpError if there is no such model or the caller may not use it. Without a name it is the one that is
        served."""
        if name:
            self._version_of(name)
        exchange.context.caller.check(self._model, MAX_PRIORITY)

    async def _serve(
        self, exchange: ApiExchange, received: ReceivedRequest, coming_batch: Awaitable[GenerationBatch]
    ) -> None:
        """Let the request in and answer it. Raises HttpError; if the request is refused, that can be explained."""
        batch: GenerationBatch | None = None
        try:
            batch = await coming_batch
            permit = await self._enter(exchange, batch)
        except RequestError as refused:
            num_prompt_tokens = batch.num_prompt_tokens if batch is not None else 0
            self._service.note_refused(received.refused(num_prompt_tokens, refused.error, time.monotonic()))
            if exchange.context.trace is not None:
                exchange.context.trace.refusal = refused.error
            raise
        await self._answer(exchange, batch, permit)

    async def _enter(self, exchange: ApiExchange, batch: GenerationBatch) -> Permit:
        """Raises HttpError if there are too many choices, or the caller's key does not allow so much now."""
        if batch.body.explain and batch.num_choices > MAX_EXPLAINED_CHOICES:
            message = f"'explain' is served for up to {MAX_EXPLAINED_CHOICES} choices, got {batch.num_choices}."
            raise HttpError(400, message, param="explain", code="invalid_value")
        permit, header_lines = await self._access.enter(
            batch.received.caller,
            self._model,
            batch.num_reserved_tokens,
            batch.num_choices,
            is_resumed=exchange.context.checkpoint.resumed(0) is not None,
        )
        exchange.header_lines += header_lines
        if batch.clamped_to is not None:
            exchange.add_header(MAX_TOKENS_HEADER, str(batch.clamped_to))
            self._metrics.num_clamped += 1
        return permit

    async def _answer(self, exchange: ApiExchange, batch: GenerationBatch, permit: Permit) -> None:
        """Generate the choices and send the answer. Raises HttpError if it fails before anything was sent."""
        choices: list[Choice] = []
        body, num_choices, choices_per_prompt = batch.body, batch.num_choices, batch.choices_per_prompt
        self._metrics.choices.observe(choices_per_prompt)
        for prompt in batch.prompts:
            self._metrics.max_tokens.observe(prompt.sampling.max_tokens, choices_per_prompt)
        try:
            await self._stages.next_stage()
            for index in range(num_choices):
                choices.append(self._submit(batch, index, exchange))
            await asyncio.sleep(0)  # lets the requests leave for their workers now, before the answer is prepared
            answer = Answer(
                choices,
                batch.form,
                num_prompt_tokens=batch.num_prompt_tokens,
                choices_per_prompt=choices_per_prompt,
                prompt_param=batch.prompt_param,
                explains=bool(body.explain),
            )
            if body.stream:
                await answer.send_stream(exchange, body.wants_usage, body.wants_usage_so_far, self._ping_s)
            else:
                await answer.respond(exchange)
        finally:
            for choice in choices:
                choice.stream.cancel()  # ends what still runs if we left early
            for choice in choices:
                choice.record_end()
            self._access.settle(permit, used_by(choices, batch))
            if exchange.context.trace is not None:
                exchange.context.trace.answered([choice.stream.record for choice in choices], span_attributes(batch))

    def _submit(self, batch: GenerationBatch, index: int, exchange: ApiExchange) -> Choice:
        """Queue one choice. Raises HttpError if it is not admitted."""
        try:
            stream = self._service.submit(self._generation(batch, index, exchange))
        except AdmissionError as refusal:
            if exchange.context.trace is not None:
                exchange.context.trace.refusal = refusal.error
            raise as_http_error(refusal.error, batch.prompt_param) from refusal
        includes_stop = bool(batch.body.include_stop_str_in_output)
        return Choice(
            index,
            stream,
            OutputText(self._tokenizer.pieces, batch.body.stop or (), includes_stop, batch.body.min_tokens or 0),
            self._metrics.begin(batch.received.arrived_s),
            prefix=batch.prompt_of(index).text,
            hides_stop_token=not includes_stop,
        )

    @staticmethod
    def _generation(batch: GenerationBatch, index: int, exchange: ApiExchange) -> GenerateRequest:
        """The request to the dispatcher for one choice."""
        body, received, caller = batch.body, batch.received, batch.received.caller
        choices_per_prompt = batch.choices_per_prompt
        prompt = batch.prompt_of(index)
        sampling = prompt.sampling
        if choices_per_prompt > 1:
            sampling = sampling._replace(seed=(sampling.seed + index % choices_per_prompt) & SEED_MASK)
        request_id, names = batch.ids_of(index)
        return GenerateRequest(
            request_id=request_id,
            prompt_ids=prompt.packed_ids,
            sampling=sampling,
            priority=body.priority or 0,
            cache_salt=caller.own(body.cache_salt or ""),
            tenant=received.tenant,
            weight=caller.weight,
            names=names,
            slo=body.service_level,
            session=received.session,
            expected_output_tokens=body.expected_output_tokens,
            timeout_s=body.timeout_s,
            choice=index,
            trace_id=received.trace_id,
            version=received.version,
            first_choice=batch.ids_of(0)[0] if index else "",
            wants_record=bool(body.explain),
            resumed=exchange.context.checkpoint.resumed(index),
        )

    def _sampling(
        self, body: GenerationFields, max_tokens: int, logprobs: int | None, grammar: GrammarSpec | None, own_seed: int
    ) -> SamplingParams:
        seed = own_seed if body.seed is None else body.seed
        return sampling_params(
            body,
            max_tokens=max_tokens,
            logprobs=logprobs,
            seed=seed,
            vocab_size=self._tokenizer.vocab_size,
            grammar=grammar,
            defaults=self._defaults,
        )

    def _version_of(self, name: str) -> str:
        """The version that a model's name asks for, "" if none. Raises HttpError 404 if it is not served."""
        if name == self._model:
            return ""
        version = name.removeprefix(f"{self._model}@")
        if version and version != name and version in self._service.versions_of(self._model):
            return version
        raise HttpError(
            404,
            f"The model {name!r} does not exist; this server has {self._model!r}.",
            param="model",
            code="model_not_found",
        )

    def _model_card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "slipstream",
            "max_model_len": self._service.max_model_len_of(self._model),
        }
