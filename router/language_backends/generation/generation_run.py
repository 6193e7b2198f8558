"""Runs the generations that a tensor request asks for, one for each output of each row."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError

from slipstream.router.access.caller import ANYBODY
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.generation.answer.answer_format import AnswerHead
from slipstream.router.api.generation.answer.choice import Choice
from slipstream.router.api.generation.generation_batch import GenerationBatch, ReceivedRequest
from slipstream.router.api.generation.model_lookup import ModelLookup
from slipstream.router.api.generation.request_preparation import RequestPreparation
from slipstream.router.api.openai.body.parsing import as_http_error
from slipstream.router.api.openai.body.sampling import SEED_MASK
from slipstream.router.api.openai.schema.completion_request import CompletionRequest
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.infer.requests.active_request import ActiveRequest
from slipstream.router.infer.requests.request_record import Execution
from slipstream.router.language_backends.generation.output_part import Grid, OutputPart
from slipstream.router.language_backends.generation.output_run import OutputRun
from slipstream.router.language_backends.generation.tensor_generation import RowRequest, TensorGeneration
from slipstream.router.language_backends.generation.token_output import TokenOutput
from slipstream.router.observability.front_counts import FrontMetrics
from slipstream.router.process.random_bytes import random_bytes
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.requests.stream import GenerationStream
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.tensor import Tensor

Respond = Callable[[list[Tensor], bool], None]  # with whether it is the last one


class Submits(Protocol):
    def submit(self, request: GenerateRequest) -> GenerationStream: ...


@dataclass(frozen=True, slots=True)
class Generations:
    """What generations need. They are prepared as those of the API of OpenAI, and counted with them."""

    lookup: ModelLookup
    preparation: RequestPreparation
    service: Submits
    metrics: FrontMetrics


class GenerationRun:
    """`model` is the served model. `priority` 0 is usual, and less is more urgent."""

    def __init__(
        self, generations: Generations, model: str, asked: TensorGeneration, active: ActiveRequest, respond: Respond
    ) -> None:
        self._generations = generations
        self._model = model
        self._asked = asked
        self._active = active
        self._respond = respond
        self._batches: list[GenerationBatch] = []
        self._choices: list[Choice[Any]] = []
        self._whole: Grid = []  # what came so far, unless it is streamed
        self._num_running = 0
        self._rows_read: set[int] = set()

    async def to_end(self, priority: int) -> None:
        """Raises one of GENERATION_ERRORS, of those that failed the first one; then the others have been cancelled."""
        try:
            for number, row in enumerate(self._asked.rows):
                self._batches.append(await self._prepared(row, number, priority))
            if len({batch.num_choices for batch in self._batches}) > 1:
                raise InferError("the rows of a request must ask for equally many outputs ('n')")
            await self._generate()
        finally:
            for choice in self._choices:
                choice.stream.cancel()  # ends what still runs
            for choice in self._choices:
                choice.record_end()

    async def _prepared(self, row: RowRequest, number: int, priority: int) -> GenerationBatch:
        """Raises HttpError."""
        request = self._active.request
        fields = {**row.fields, "model": self._model, "priority": priority}
        if request.tenant:
            fields |= {"user": request.tenant, "cache_salt": salt_of(request.tenant)}
        try:
            body = CompletionRequest.model_validate(fields)
        except ValidationError as error:
            raise as_http_error(error) from None
        if body.use_beam_search:
            raise InferError("'use_beam_search' is not served here; use the API of OpenAI")
        lookup = self._generations.lookup
        model, version, versions = lookup.of_generation(self._model, priority, ExchangeContext(), "")
        batch = await self._generations.preparation.of_completion(
            received_of(request, number, body, model, version, versions), body
        )
        if row.bad_words:
            batch.prompts = [
                prompt._replace(sampling=prompt.sampling._replace(bad_words=row.bad_words)) for prompt in batch.prompts
            ]
        return batch

    async def _generate(self) -> None:
        runs: list[OutputRun] = []
        for row, (batch, asked) in enumerate(zip(self._batches, self._asked.rows, strict=True)):
            self._whole.append([OutputPart() for _ in range(batch.num_choices)])
            counts = self._generations.metrics.of(batch.received.model.name)
            counts.choices.observe(batch.choices_per_prompt)
            counts.max_tokens.observe(batch.prompts[0].sampling.max_tokens, batch.choices_per_prompt)
            for index in range(batch.num_choices):
                choice = self._submitted(batch, index, asked)
                self._choices.append(choice)
                runs.append(OutputRun(choice, self._taking(row, index)))
        self._num_running = len(runs)
        self._active.started_s = time.monotonic()
        if len(runs) == 1:
            await runs[0].to_end()
            return
        tasks = [asyncio.ensure_future(run.to_end()) for run in runs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _submitted(self, batch: GenerationBatch, index: int, asked: RowRequest) -> Choice[Any]:
        """Raises AdmissionError."""
        follows = bool(self._active.request.parent_id)
        stream = self._generations.service.submit(batch.generation(index)._replace(follows=follows))
        return Choice(
            index,
            stream,
            TokenOutput(asked.stop_words) if not batch.body.detokenizes else batch.output(),
            self._generations.metrics.of(batch.received.model.name).begin(batch.received.arrived_s),
            prefix="",
            hides_stop_token=not batch.body.include_stop_str_in_output,
        )

    def _count_tokens(self, row: int, index: int, part: OutputPart) -> None:
        """For the limits and the usage of the client's API key, as they come: when a request has ended or was given up,
        all that it has used is counted. A prompt counts once for all its outputs, and is read by the first token."""
        tokens, batch = self._active.request.tokens, self._batches[row]
        if tokens is None:
            return
        tokens.num_output += len(part.tokens)
        if row not in self._rows_read:
            self._rows_read.add(row)
            tokens.num_prompt += batch.num_prompt_tokens
        finish = self._choices[row * batch.num_choices + index].stream.finish
        if part.reason and index == 0 and finish is not None:
            tokens.num_cached += finish.usage.num_cached_tokens

    def _taking(self, row: int, index: int) -> Callable[[OutputPart], None]:
        return lambda part: self._take(row, index, part)

    def _take(self, row: int, index: int, part: OutputPart) -> None:
        active = self._active
        if not active.record.executions:
            self._note_execution()
        self._count_tokens(row, index, part)
        if part.reason:
            self._num_running -= 1
        is_final, writer = not self._num_running, self._asked.writer
        if self._asked.is_streamed:
            news = [[OutputPart() for _ in outputs] for outputs in self._whole]
            news[row][index] = part
            if is_final or writer.shows(news):
                self._respond(writer.outputs(news, self._batches), is_final)
            return
        self._whole[row][index].extend(part)
        if is_final:
            self._respond(writer.outputs(self._whole, self._batches), is_final)

    def _note_execution(self) -> None:
        """The first tokens are there: where and since when they are generated."""
        active, record = self._active, self._choices[0].stream.record
        active.started_s = record.timeline.placed or active.started_s
        execution = Execution(f"{self._model} ({record.request_id})", active.started_s, 1, active.batch_size)
        active.record.executions.append(execution)


def received_of(
    request: InferRequest,
    row: int,
    body: CompletionRequest,
    model: ServedModel,
    version: str,
    versions: tuple[str, ...],
) -> ReceivedRequest:
    """A row of a tensor request as a request of the API. It is explained by the id of the tensor request, and `#0` for
    the first row."""
    head = AnswerHead(f"infer-{random_bytes(16).hex()}", int(time.time()), model.name)
    seed = int.from_bytes(random_bytes(8)) & SEED_MASK
    return ReceivedRequest(
        body,
        model,
        version,
        f"{request.request_id or request.id}#{row}",
        ANYBODY,
        request.trace_id,
        request.received_s or time.monotonic(),
        head,
        seed,
        versions,
    )


def salt_of(tenant: str) -> str:
    """Tenants share no prefix cache, but their requests in both APIs do (`Caller.own`)."""
    return f"tenant:{len(tenant)}:{tenant}:"
