"""The way of a generating request through the API, whichever API it came by: the model is looked up, the prepared batch
is let in, submitted and answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from slipstream.router.access.access import Access, Permit
from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.generation.answer.answer import Answer
from slipstream.router.api.generation.answer.answer_format import AnswerHead
from slipstream.router.api.generation.answer.best_of import MeanLogprob
from slipstream.router.api.generation.answer.choice import Choice
from slipstream.router.api.generation.answer.failures import as_http_error
from slipstream.router.api.generation.beam_answer import BeamAnswer
from slipstream.router.api.generation.generation_batch import (
    GenerationBatch,
    ReceivedRequest,
    reasons_of,
    span_attributes,
    used_by,
)
from slipstream.router.api.generation.model_lookup import ModelLookup, ModelStatus
from slipstream.router.api.generation.preparation_stages import PreparationStages
from slipstream.router.api.generation.request_preparation import RequestPreparation
from slipstream.router.api.openai.body.parsing import BodyParser
from slipstream.router.api.openai.schema.generation_fields import GenerationFields
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.config.router_config import ApiConfig
from slipstream.router.http.http_error import HttpError, RequestError
from slipstream.router.http.reader import Request
from slipstream.router.observability.front_counts import FrontMetrics, ModelCounts
from slipstream.router.protocol.generation import AdmissionError, Delta, GenerateRequest
from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.protocol.model_id import ModelId
from slipstream.router.requests.rejections import RejectedRequest
from slipstream.router.requests.stream import GenerationStream

MAX_TOKENS_HEADER = "x-slipstream-max-tokens"
MAX_EXPLAINED_CHOICES = 16  # in one answer; the explanation of each can be tens of KiB

Body = TypeVar("Body", bound=BaseModel)


class SubmitService(ModelStatus, Protocol):
    """What the API needs of `GenerationService`."""

    def submit(self, request: GenerateRequest) -> GenerationStream: ...
    def note_refused(self, refused: RejectedRequest) -> None: ...
    def turn_ended(self, model: str, request_id: str, tools: Sequence[str]) -> None: ...


class GenerationFlow:
    """One for all APIs of a process. An API parses its body and makes a chat or a completion of it, lets `preparation`
    turn that into a batch with a format of its own, and has it served:

        received = flow.received(chat, exchange, arrived_s, "resp_")
        with flow.stages:
            await flow.serve(exchange, received, coming_batch)
    """

    def __init__(
        self,
        catalog: Catalog,
        service: SubmitService,
        metrics: FrontMetrics,
        access: Access,
        config: ApiConfig,
        ping_s: float | None = None,
    ) -> None:
        """`ping_s`: see `Pings`."""
        self._ping_s = ping_s
        self._service = service
        self._metrics = metrics
        self._access = access
        self.lookup = ModelLookup(catalog, service)
        self.bodies = BodyParser(config.unknown_fields == "ignore", metrics.ignored_fields, self.lookup.longest)
        self.stages = PreparationStages()
        self.preparation = RequestPreparation(self.lookup, service, self.stages, config.overlong == "clamp")

    def parse(self, request: Request, exchange: ApiExchange, form: type[Body]) -> Body:
        """The body. Raises HttpError; one about a model that is not named says which there are."""
        try:
            return self.bodies.parse(request, exchange, form)
        except HttpError as error:
            if (error.param, error.code) == ("model", "missing_required_parameter"):
                raise self.lookup.missing(exchange.context.caller) from error
            raise

    def received(self, body: GenerationFields, exchange: ApiExchange, arrived_s: float, prefix: str) -> ReceivedRequest:
        """The request as it arrived. Raises HttpError if there is no such model or the caller may not use it."""
        context = exchange.context
        named = body.session_id or context.session
        session = named or body.cache_key
        session = context.caller.own(session) if session else ""
        pinned = session if named else ""  # many conversations may have one cache key
        context.model = body.model
        model, version, versions = self.lookup.of_generation(body.model, body.priority or 0, context, pinned)
        identity = context.checkpoint.identity(ModelId(model.name, version))
        answer_id = f"{prefix}{identity.number:032x}"
        model_name = body.model if not version else body.model.removesuffix(f"@{version}")
        head = AnswerHead(answer_id, identity.created_s, model_name, service_tier=body.served_tier)
        return ReceivedRequest(
            body,
            model,
            version,
            exchange.request_id,
            context.caller,
            context.trace_id,
            arrived_s,
            head,
            identity.seed,
            versions,
            session,
            trace_span=context.trace.span_id if context.trace is not None else "",
            keeps_version=bool(named),
        )

    async def serve(
        self, exchange: ApiExchange, received: ReceivedRequest, coming_batch: Awaitable[GenerationBatch]
    ) -> None:
        """Let the request in and answer it. Raises HttpError; if the request is refused, that can be explained. The
        stream that another router has begun ends with the error."""
        try:
            batch = await coming_batch
        except RequestError as refused:
            self._note_refused(exchange, received, 0, refused)
            raise
        try:
            await self._serve(exchange, batch)
        except HttpError as error:
            if not exchange.head_sent:
                raise
            end_begun_stream(exchange, batch, error)

    async def _serve(self, exchange: ApiExchange, batch: GenerationBatch) -> None:
        """Raises HttpError."""
        try:
            permit = await self._enter(exchange, batch)
        except RequestError as refused:
            self._note_refused(exchange, batch.received, batch.num_prompt_tokens, refused)
            raise
        if batch.body.use_beam_search:
            await self._answer_by_beams(exchange, batch, permit)
        else:
            await self._answer(exchange, batch, permit)

    def _note_refused(
        self, exchange: ApiExchange, received: ReceivedRequest, num_prompt_tokens: int, refused: RequestError
    ) -> None:
        self._service.note_refused(received.refused(num_prompt_tokens, refused.error, time.monotonic()))
        if exchange.context.trace is not None:
            exchange.context.trace.refusal = refused.error

    async def _answer_by_beams(self, exchange: ApiExchange, batch: GenerationBatch, permit: Permit) -> None:
        """Search and send the answer. Raises HttpError."""
        name = batch.received.model.name
        counts = self._metrics.of(name)
        await self.stages.next_stage(name)
        answer = BeamAnswer(
            self._service,
            batch,
            lambda prompt: self._generation(batch, prompt * batch.choices_per_prompt, exchange),
            lambda: self._service.abilities_of(name),
            counts,
        )
        try:
            await answer.respond(exchange)
        finally:
            self._access.settle(permit, answer.used())
            if exchange.context.trace is not None:
                exchange.context.trace.answered(answer.records, span_attributes(batch))

    async def _enter(self, exchange: ApiExchange, batch: GenerationBatch) -> Permit:
        """Raises HttpError if there are too many choices, or the caller's key does not allow so much now."""
        if batch.body.explain and batch.num_choices > MAX_EXPLAINED_CHOICES:
            message = f"'explain' is served for up to {MAX_EXPLAINED_CHOICES} choices, got {batch.num_choices}."
            raise HttpError(400, message, param="explain", code="invalid_value")
        permit, header_lines = await self._access.enter(
            batch.received.caller,
            batch.received.model.name,
            batch.num_reserved_tokens,
            batch.num_choices,
            is_resumed=exchange.context.checkpoint.resumed(0) is not None,
        )
        exchange.header_lines += exchange.context.limit_lines(header_lines)
        if batch.clamped_to is not None:
            exchange.add_header(MAX_TOKENS_HEADER, str(batch.clamped_to))
            self._metrics.of(batch.received.model.name).num_clamped += 1
        return permit

    async def _answer(self, exchange: ApiExchange, batch: GenerationBatch, permit: Permit) -> None:
        """Generate the choices and send the answer. Raises HttpError if it fails before anything was sent."""
        choices: list[Choice[Any]] = []
        body, num_choices, choices_per_prompt = batch.body, batch.num_choices, batch.choices_per_prompt
        counts = self._metrics.of(batch.received.model.name)
        counts.choices.observe(choices_per_prompt)
        for prompt in batch.prompts:
            counts.max_tokens.observe(prompt.sampling.max_tokens, choices_per_prompt)
        try:
            await self.stages.next_stage(batch.received.model.name)
            for index in range(num_choices):
                choices.append(self._submit(batch, index, exchange, counts))
            await asyncio.sleep(0)  # lets the requests leave for their workers now, before the answer is prepared
            answer = Answer(
                choices,
                batch.form,
                num_prompt_tokens=batch.num_prompt_tokens,
                choices_per_prompt=choices_per_prompt,
                prompt_param=batch.prompt_param,
                explains=bool(body.explain),
                num_best=batch.num_best,
                keeper=batch.keeper,
                tokens=batch.tokens,
            )
            if body.stream:
                await answer.send_stream(exchange, body.wants_usage_so_far, self._ping_s)
            else:
                await answer.respond(exchange)
        finally:
            for choice in choices:
                choice.stream.cancel()  # ends what still runs if we left early
            for choice in choices:
                choice.record_end()
            if body.retention is not None:
                self._report_calls(choices, batch)
            self._access.settle(permit, used_by(choices, batch))
            if exchange.context.trace is not None:
                records = [choice.stream.record for choice in choices]
                exchange.context.trace.answered(records, span_attributes(batch), reasons_of(choices))

    def _report_calls(self, choices: Sequence[Choice[Any]], batch: GenerationBatch) -> None:
        """Which tools the answers call: by that it is predicted when their conversation comes back."""
        for choice in choices:
            if choice.reason is not None:
                request_id = batch.ids_of(choice.index)[0]
                tools = choice.output.call_names if choice.reason == "tool_calls" else ()
                self._service.turn_ended(batch.received.model.name, request_id, tools)

    def _submit(self, batch: GenerationBatch, index: int, exchange: ApiExchange, counts: ModelCounts) -> Choice[Any]:
        """Queue one choice. Raises HttpError if it is not admitted."""
        try:
            stream = self._service.submit(self._generation(batch, index, exchange))
        except AdmissionError as refusal:
            if exchange.context.trace is not None:
                exchange.context.trace.refusal = refusal.error
            raise as_http_error(refusal.error, batch.prompt_param) from refusal
        return Choice(
            index,
            stream,
            batch.output(),
            counts.begin(batch.received.arrived_s),
            prefix=batch.prefix_of(index // batch.choices_per_prompt),
            hides_stop_token=not batch.body.include_stop_str_in_output,
            score=MeanLogprob() if batch.num_best is not None else None,
        )

    @staticmethod
    def _generation(batch: GenerationBatch, index: int, exchange: ApiExchange) -> GenerateRequest:
        context = exchange.context
        return batch.generation(index, context.checkpoint.resumed(index), is_background=context.is_background)


def end_begun_stream(exchange: ApiExchange, batch: GenerationBatch, error: HttpError) -> None:
    """End a stream that a killed router has begun, and that cannot go on, behind what the client has of it."""
    for index in range(batch.num_choices):
        resumed = exchange.context.checkpoint.resumed(index)
        if resumed is not None:
            entries: Delta = [(token_id, None) for token_id in unpack_ids(resumed.output_ids)]
            text = batch.prefix_of(index // batch.choices_per_prompt) + batch.output().add(entries)
            if text:
                batch.form.text_chunk(index, text, [])
    exchange.keep_alive = False
    exchange.finish(batch.form.failure(error))
