"""Turns the token streams of a request into its answer: as events while tokens arrive, or as a whole at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import orjson

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.generation.answer.answer_format import AnswerFormat, TokenUsage, WholeChoice
from slipstream.router.api.generation.answer.best_of import best_choices
from slipstream.router.api.generation.answer.choice import Choice, ChoiceRun, OnText
from slipstream.router.api.generation.answer.failures import GenerationFailed, as_http_error
from slipstream.router.api.generation.answer.output import AnswerReason, Out, TokenEntry
from slipstream.router.api.generation.answer.pings import Pings
from slipstream.router.api.generation.answer.token_report import PromptRenderer, ReportedTokens
from slipstream.router.http.failover.stream_checkpoint import NO_CHECKPOINT, StreamCheckpoint
from slipstream.router.observability.explain.explain import explained_now
from slipstream.router.protocol.generation import GenerationFinish

EVENT_STREAM = "text/event-stream; charset=utf-8"
# Proxies must not keep, compress (`no-transform`: they would collect for that) or, as nginx does, buffer a stream.
STREAM_HEADERS = (("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no"))

T = TypeVar("T")


class AnswerKeeper(Protocol):
    """Stores an answer before its client hears that it is complete."""

    async def keep(self, end: bytes) -> bytes:
        """`end` is a whole answer, or what ends a stream. Returns what is sent in its place."""


class ChoiceEnd(NamedTuple, Generic[Out]):
    """The end of a choice; `text` and `logprobs` are what was held back until then."""

    text: Out
    logprobs: list[TokenEntry]
    reason: AnswerReason


class Answer(Generic[Out]):
    """The answer to one HTTP request: all of its choices. `num_prompt_tokens` is the sum over its prompts."""

    def __init__(
        self,
        choices: Sequence[Choice[Out]],
        form: AnswerFormat[Out],
        *,
        num_prompt_tokens: int,
        choices_per_prompt: int,
        prompt_param: str,
        explains: bool = False,
        num_best: int | None = None,
        keeper: AnswerKeeper | None = None,
        tokens: ReportedTokens | None = None,
    ) -> None:
        """`num_best`: of the choices of each prompt, only so many are sent, those with the best scores first. `keeper`:
        None: the answer is not stored. `tokens` is there if more is said of tokens than their text."""
        self._choices: Sequence[Choice[Out]] = choices
        self._form: AnswerFormat[Out] = form
        self._num_prompt_tokens = num_prompt_tokens
        self._choices_per_prompt = choices_per_prompt
        self._prompt_param = prompt_param
        self._explains = explains
        self._num_best = num_best
        self._tokens = tokens
        self._keeper = keeper
        self._num_cached_tokens = 0
        self._checkpoint: StreamCheckpoint = NO_CHECKPOINT

    async def respond(self, exchange: ApiExchange) -> None:
        """Answer when all choices are complete. Raises HttpError if any of them fails."""
        self._checkpoint = exchange.context.checkpoint.of_whole_answer()

        async def collect(choice: Choice[Out]) -> WholeChoice[Out]:
            parts: list[Out] = []
            rendered: list[Any] = []

            def keep(text: Out, logprobs: list[TokenEntry]) -> None:
                parts.append(text)
                rendered.extend(map(self._form.logprob, logprobs))

            token_ids: list[int] | None = None
            if self._tokens is not None and self._tokens.add_ids is not None:
                token_ids = []
                choice.add_ids = token_ids.extend
            end = await self._run(choice, exchange, keep)
            keep(end.text, end.logprobs)
            return WholeChoice(choice.index, choice.output.joined(parts), rendered, end.reason, token_ids)

        try:
            choices = await self._for_all(collect)
        except GenerationFailed as failure:
            raise as_http_error(failure.error, self._prompt_param) from failure
        if self._tokens is not None and self._tokens.prompts is not None:
            choices = await self._with_prompts(choices, self._tokens.prompts)
        if self._num_best is not None:
            scores = [choice.score.mean if choice.score is not None else 0.0 for choice in self._choices]
            choices = best_choices(choices, scores, self._choices_per_prompt, self._num_best)
        exchange.respond(200, await self._kept(self._form.whole(choices, self._usage(), self._explained())))

    async def _with_prompts(
        self, choices: Sequence[WholeChoice[Out]], prompts: PromptRenderer
    ) -> list[WholeChoice[Out]]:
        """The choices with the log-probabilities of their prompts, which the first choice of each has got."""
        with_prompts = []
        for prompt, first in enumerate(range(0, len(choices), self._choices_per_prompt)):
            rendered = await prompts.rendered(prompt, self._choices[first].stream.prompt_scores)
            of_prompt = choices[first : first + self._choices_per_prompt]
            with_prompts += [replace(choice, prompt=rendered) for choice in of_prompt]
        return with_prompts

    async def send_stream(
        self,
        exchange: ApiExchange,
        sends_usage_so_far: bool = False,
        ping_s: float | None = None,
    ) -> None:
        """Send text as soon as it is certain. With `sends_usage_so_far`, each chunk carries
        the usage so far. For `ping_s` see `Pings`.

        A failure before the first text or ping raises HttpError. After that the status 200 has already been sent, so
        the stream ends with the format's `failure`, and the connection is closed.
        """
        exchange.start(200, EVENT_STREAM, STREAM_HEADERS)
        is_only = len(self._choices) == 1
        checkpoint = self._checkpoint = exchange.context.checkpoint

        async def stream(choice: Choice[Out]) -> bytes:
            is_sent = checkpoint.has_ended(choice.index)  # all of it, by the previous router
            if self._tokens is not None and self._tokens.add_ids is not None:
                choice.add_ids = partial(self._tokens.add_ids, choice.index)

            def send(text: Out, logprobs: list[TokenEntry]) -> None:
                if sends_usage_so_far:
                    self._form.set_usage(self._usage())
                if not is_sent:
                    chunk = self._form.text_chunk(choice.index, text, logprobs)
                    if chunk:
                        exchange.write(chunk)

            end = await self._run(choice, exchange, send)
            if sends_usage_so_far:
                self._form.set_usage(self._usage())
            final = self._form.final_chunk(choice.index, end.text, end.logprobs, end.reason)
            if is_only:
                return final  # leaves together with the end of the stream
            if not is_sent:
                checkpoint.ended(choice.index)
                exchange.write(final)
            return b""

        try:
            with Pings(exchange, ping_s, self._num_output_tokens, self._form.ping):
                finals: list[bytes] = await self._for_all(stream)
        except GenerationFailed as failure:
            error = as_http_error(failure.error, self._prompt_param)
            if not exchange.head_sent:
                raise error from failure
            exchange.keep_alive = False
            exchange.finish(self._form.failure(error))
            return
        end = await self._kept(self._form.stream_end(self._usage(), self._explained()))
        exchange.finish(b"".join((*finals, end)))

    async def _kept(self, end: bytes) -> bytes:
        return end if self._keeper is None else await self._keeper.keep(end)

    async def _for_all(self, run: Callable[[Choice[Out]], Awaitable[T]]) -> list[T]:
        """Run all choices concurrently; the first failure cancels the others."""
        if len(self._choices) == 1:
            return [await run(self._choices[0])]

        async def run_one(choice: Choice[Out]) -> T:
            return await run(choice)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run_one(choice)) for choice in self._choices]
        except BaseExceptionGroup as group:
            failures, others = group.split(GenerationFailed)
            if failures is None or others is not None:
                raise
            raise first_of(failures) from None
        return [task.result() for task in tasks]

    async def _run(self, choice: Choice[Out], exchange: ApiExchange, on_text: OnText[Out]) -> ChoiceEnd[Out]:
        """Pass the text of one choice to `on_text` as it becomes certain, and return what is left at the end. Raises
        GenerationFailed."""
        text, logprobs = await ChoiceRun(choice, exchange, self._form, self._checkpoint, on_text).to_end()
        choice.reason = self._reason(choice, choice.stream.finish)
        if choice.output.stop_string is not None:
            self._form.stopped_by(choice.index, choice.output.stop_string)
        return ChoiceEnd(text, logprobs, choice.reason)

    def _reason(self, choice: Choice[Out], finish: GenerationFinish | None) -> AnswerReason:
        """Why a choice ended; also records how much of its prompt was cached. Raises GenerationFailed."""
        assert finish is not None, "an ended stream has a finish"
        if finish.reason in ("abort", "error") and not choice.output.stopped:
            raise GenerationFailed(finish)
        if choice.index % self._choices_per_prompt == 0:
            self._num_cached_tokens += finish.usage.num_cached_tokens
        reason = "stop" if choice.output.stopped else finish.reason
        return "tool_calls" if reason == "stop" and choice.output.has_calls else reason

    def _explained(self) -> bytes:
        """The explanation of each choice as JSON; empty if the client did not ask for it."""
        if not self._explains:
            return b""
        return orjson.dumps({"explain": explained_now(choice.stream.record for choice in self._choices)})

    def _usage(self) -> TokenUsage:
        usage = TokenUsage(self._num_prompt_tokens, self._num_output_tokens(), self._num_cached_tokens)
        if self._choices[0].output.num_reasoning_tokens is None:  # as of all others
            return usage
        counts = [choice.output.num_reasoning_tokens or 0 for choice in self._choices]
        return usage._replace(num_reasoning_tokens=sum(counts))

    def _num_output_tokens(self) -> int:
        return sum([choice.output.num_tokens for choice in self._choices])


def first_of(failures: BaseExceptionGroup[GenerationFailed]) -> GenerationFailed:
    """One of the failures, as the client gets a single error for all choices."""
    first = failures.exceptions[0]
    return first if isinstance(first, GenerationFailed) else first_of(first)
