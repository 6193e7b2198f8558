"""The answer of a request with beam search: a search for each of its prompts, whose best hypotheses are the choices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from slipstream.router.access.usage import UsageCounts
from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.generation.answer.answer_format import TokenUsage, WholeChoice
from slipstream.router.api.generation.answer.failures import GenerationFailed, as_http_error
from slipstream.router.api.generation.answer.output import AnswerReason
from slipstream.router.api.generation.generation_batch import GenerationBatch
from slipstream.router.api.openai.body.beam_fields import beam_settings
from slipstream.router.beam_search.beam_run import LOCAL, BeamRun, BeamStepFailed, StepOfBeam, Submitting
from slipstream.router.beam_search.beam_search import Hypothesis
from slipstream.router.observability.front_counts import ModelCounts, RequestMeter
from slipstream.router.protocol.generation import AdmissionError, GenerateRequest
from slipstream.router.registry.worker_abilities import WorkerAbilities
from slipstream.router.requests.history import RequestRecord


class BeamAnswer:
    """One answer. `base_of` makes the request of a prompt's first choice, as without beams."""

    def __init__(
        self,
        service: Submitting,
        batch: GenerationBatch,
        base_of: Callable[[int], GenerateRequest],
        abilities: Callable[[], WorkerAbilities],
        counts: ModelCounts,
    ) -> None:
        body, received = batch.body, batch.received
        self._batch = batch
        self._num_wanted = body.n or batch.choices_per_prompt
        self._logprobs = batch.prompts[0].sampling.logprobs
        self._ends_s = None if body.timeout_s is None else time.monotonic() + body.timeout_s
        self._runs = [
            BeamRun(
                service,
                partial(self._request, base_of, at),
                beam_settings(body, prompt.sampling.max_tokens),
                lambda: (*(() if body.ignore_eos else abilities().end_token_ids), *(body.stop_token_ids or ())),
                self._logprobs or 0,
            )
            for at, prompt in enumerate(batch.prompts)
        ]
        self._meters: list[RequestMeter] = [counts.begin(received.arrived_s) for _ in self._runs]
        self._num_reasoning_tokens: list[int | None] = []  # of each choice
        self._has_failed = False  # not so if the client has left

    @property
    def records(self) -> list[RequestRecord]:
        """The records of the first step of each prompt."""
        return [run.first for run in self._runs if run.first is not None]

    def used(self) -> UsageCounts:
        """All tokens of all beams count, also of those that were given up."""
        used = UsageCounts(num_requests=1, num_errors=int(self._has_failed))
        for run in self._runs:
            used.num_prompt_tokens += run.usage.num_prompt_tokens
            used.num_cached_tokens += run.usage.num_cached_tokens
            used.num_output_tokens += run.usage.num_output_tokens
        return used

    async def respond(self, exchange: ApiExchange) -> None:
        """Searches and answers. Raises HttpError."""
        reason: AnswerReason = "abort"
        try:
            found = await self._search()
            self._batch.form.served_by(self._runs[0].version)
            choices = [
                self._choice(at * self._num_wanted + rank, at, hypothesis)
                for at, hypotheses in enumerate(found)
                for rank, hypothesis in enumerate(hypotheses[: self._num_wanted])
            ]
            used = self.used()
            counts = self._num_reasoning_tokens
            num_reasoning = None if None in counts else sum(filter(None, counts))
            usage = TokenUsage(used.num_prompt_tokens, used.num_output_tokens, used.num_cached_tokens, num_reasoning)
            reason = choices[0].finish_reason
            exchange.respond(200, self._batch.form.whole(choices, usage))
        except AdmissionError as refusal:
            self._has_failed, reason = True, "error"
            raise as_http_error(refusal.error, self._batch.prompt_param) from refusal
        except BeamStepFailed as failure:
            reason = failure.finish.reason
            self._has_failed = reason == "error"
            raise as_http_error(GenerationFailed(failure.finish).error, self._batch.prompt_param) from failure
        finally:
            for run, meter in zip(self._runs, self._meters, strict=True):
                if run.first is not None:
                    meter.served_by(run.version)
                    if run.usage.num_output_tokens:
                        meter.tokens(run.usage.num_output_tokens)
                    meter.finish(reason, run.usage.num_output_tokens, run.usage, run.first.timeline)

    async def _search(self) -> list[Sequence[Hypothesis]]:
        """The hypotheses for each prompt, best first. The first failure cancels the other searches."""
        if len(self._runs) == 1:
            return [await self._runs[0].run()]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run.run()) for run in self._runs]
        except BaseExceptionGroup as failures:
            first: BaseException = failures
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None
        return [task.result() for task in tasks]

    def _request(self, base_of: Callable[[int], GenerateRequest], prompt: int, step: StepOfBeam) -> GenerateRequest:
        """The request of one beam in one step. All have a session in common, so that they run where the KV of their
        prefix is, and on one version of the model."""
        base, received = base_of(prompt), self._batch.received
        assert isinstance(base.prompt_ids, bytes)
        number = f"{prompt}.{step.number}"
        is_first = not prompt and not step.number
        of_all = (self._batch.answer_id, received.exchange_id) if is_first else ()
        return base._replace(
            request_id=f"{self._batch.answer_id}#{number}",
            names=(f"{received.exchange_id}#{number}", *of_all),
            prompt_ids=base.prompt_ids + step.suffix,
            sampling=step.sampling,
            session=received.session or f"{self._batch.answer_id}#{prompt}",
            expected_output_tokens=None,
            timeout_s=None if self._ends_s is None else max(self._ends_s - time.monotonic(), 0.001),
            local_prefill_max_tokens=LOCAL,
            choice=step.beam,
            replaces=f"{self._batch.answer_id}#{prompt}.{step.replaces}" if step.replaces else "",
            first_choice="",
        )

    def _choice(self, index: int, prompt: int, hypothesis: Hypothesis) -> WholeChoice[Any]:
        output = self._batch.output()
        shows = self._logprobs is not None
        path = [(beam.token_id, beam.logprob if shows else None) for beam in hypothesis.beam.path()]
        text = output.joined([self._batch.prefix_of(prompt), output.add(path, hypothesis.has_end), output.finish()])
        rendered = list(map(self._batch.form.logprob, output.take_logprobs()))
        self._num_reasoning_tokens.append(output.num_reasoning_tokens)
        return WholeChoice(index, text, rendered, "stop" if hypothesis.has_end else "length")
