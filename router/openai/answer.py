"""Turns the token streams of a request into its answer: as events while tokens arrive, or as a whole at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import orjson

from slipstream.router.explain import explained_now
from slipstream.router.generation import GenerationFinish
from slipstream.router.http.exchange import Exchange
from slipstream.router.messages import FinishReason, unpack_ids
from slipstream.router.metrics import RequestMeter
from slipstream.router.openai.failures import GenerationFailed, as_http_error
from slipstream.router.openai.formats import DONE, AnswerFormat, TokenUsage, WholeChoice
from slipstream.router.openai.output_text import OutputText, TokenEntry
from slipstream.router.stream import Delta, GenerationStream
from slipstream.router.takeover.notes import NO_NOTES, Notes

EVENT_STREAM = "text/event-stream; charset=utf-8"

T = TypeVar("T")
OnText = Callable[[str, list[TokenEntry]], None]


@dataclass(slots=True)
class Choice:
    """One choice of the answer and its stream. `prefix` is text to put before the output (the prompt, if it is to be
    echoed). With `hides_stop_token`, a stop token that ends the output is not part of the text. `reason` is set when
    the choice ends normally."""

    index: int
    stream: GenerationStream
    output: OutputText
    meter: RequestMeter
    prefix: str = ""
    hides_stop_token: bool = True
    reason: FinishReason | None = None

    def record_end(self) -> None:
        """Record the end in the metrics, however the choice ended."""
        finish = self.stream.finish
        reason = self.reason or (finish.reason if finish is not None else "abort")
        usage = finish.usage if finish is not None else None
        self.meter.finish(reason, self.output.num_tokens, usage, self.stream.timeline)


class ChoiceEnd(NamedTuple):
    """The end of a choice; `text` and `logprobs` are what was held back until then."""

    text: str
    logprobs: list[TokenEntry]
    reason: FinishReason


class Answer:
    """The answer to one HTTP request: all of its choices. `num_prompt_tokens` is the sum over its prompts."""

    def __init__(
        self,
        choices: Sequence[Choice],
        form: AnswerFormat,
        *,
        num_prompt_tokens: int,
        choices_per_prompt: int,
        prompt_param: str,
        explains: bool = False,
    ) -> None:
        self._choices = choices
        self._form = form
        self._num_prompt_tokens = num_prompt_tokens
        self._choices_per_prompt = choices_per_prompt
        self._prompt_param = prompt_param
        self._explains = explains
        self._num_cached_tokens = 0
        self._notes: Notes = NO_NOTES  # none for a whole answer: if the router dies, its client has nothing yet

    async def send_whole(self, exchange: Exchange) -> None:
        """Answer when all choices are complete. Raises HttpError if any of them fails."""

        async def collect(choice: Choice) -> WholeChoice:
            parts: list[str] = []
            rendered: list[Any] = []

            def keep(text: str, logprobs: list[TokenEntry]) -> None:
                parts.append(text)
                rendered.extend(map(self._form.logprob, logprobs))

            end = await self._run(choice, exchange, keep)
            keep(end.text, end.logprobs)
            return WholeChoice(choice.index, "".join(parts), rendered, end.reason)

        try:
            choices = await self._for_all(collect)
        except GenerationFailed as failure:
            raise as_http_error(failure.error, self._prompt_param) from failure
        exchange.respond(200, self._form.whole(choices, self._usage(), self._explained()))

    async def send_stream(self, exchange: Exchange, include_usage: bool, counts_on: bool = False) -> None:
        """Send text as soon as it is certain, and `[DONE]` at the end. With `counts_on`, each chunk carries the usage
        so far.

        A failure before the first text raises HttpError. After that the status 200 has already been sent, so the stream
        ends with an event `{"error": ...}`, without `[DONE]`, and the connection is closed.
        """
        exchange.start(200, EVENT_STREAM, (("cache-control", "no-cache"),))
        is_only = len(self._choices) == 1
        self._notes = exchange.notes

        async def stream(choice: Choice) -> bytes:
            def send(text: str, logprobs: list[TokenEntry]) -> None:
                if counts_on:
                    self._form.tell_usage(self._usage())
                if not self._notes.has_ended(choice.index):
                    exchange.write(self._form.text_chunk(choice.index, text, logprobs))

            end = await self._run(choice, exchange, send)
            if counts_on:
                self._form.tell_usage(self._usage())
            final = self._form.final_chunk(choice.index, end.text, end.logprobs, end.reason)
            if is_only:
                return final  # leaves together with the end of the stream
            if not self._notes.has_ended(choice.index):
                self._notes.ended(choice.index)
                exchange.write(final)
            return b""

        try:
            finals = await self._for_all(stream)
        except GenerationFailed as failure:
            error = as_http_error(failure.error, self._prompt_param)
            if not exchange.head_sent:
                raise error from failure
            exchange.keep_alive = False
            exchange.finish(b"data: " + error.body() + b"\n\n")
            return
        usage = self._usage() if include_usage else None
        last = b""
        if self._explains:
            last = self._form.explained_chunk(self._explained(), usage)
        elif usage is not None:
            last = self._form.usage_chunk(usage)
        exchange.finish(b"".join((*finals, last, DONE)))

    async def _for_all(self, run: Callable[[Choice], Awaitable[T]]) -> list[T]:
        """Run all choices concurrently; the first failure cancels the others."""
        if len(self._choices) == 1:
            return [await run(self._choices[0])]

        async def run_one(choice: Choice) -> T:
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

    async def _run(self, choice: Choice, exchange: Exchange, on_text: OnText) -> ChoiceEnd:
        """Pass the text of one choice to `on_text` as it becomes certain, and return what is left at the end. Raises
        GenerationFailed."""
        stream, output, meter, form, notes = choice.stream, choice.output, choice.meter, self._form, self._notes
        record, prefix, version = stream.record, choice.prefix, ""
        last_logprobs: list[TokenEntry] = []
        resumed = notes.resumed(choice.index)
        if resumed is not None:
            version = resumed.version
            form.served_by(version)
            text = output.add([(token_id, None) for token_id in unpack_ids(resumed.output_ids)])
            if text:
                form.text_chunk(choice.index, prefix + text, [])  # which the client has
                prefix = ""

        def take(delta: Delta) -> bool:
            nonlocal prefix, last_logprobs, version
            meter.tokens(len(delta))
            if record.version != version:
                version = record.version
                form.served_by(version)
            finish = stream.finish  # set by the time the last delta arrives
            ends_with_stop_token = finish is not None and delta[-1][0] == finish.stop_token_id
            text = output.add(delta, ends_with_stop_token and choice.hides_stop_token)
            logprobs = output.take_logprobs() if output.held else []
            if output.held:
                notes.spoil()  # they do not keep them
            if finish is not None and finish.reason in ("stop", "length"):
                prefix, last_logprobs = prefix + text, logprobs
            else:
                notes.got(choice.index, delta, record.version)
                if text or logprobs:
                    on_text(prefix + text, logprobs)
                    prefix = ""
            return not (output.stopped or exchange.congested)

        is_over = output.stopped
        while not is_over:
            is_over = await stream.each(take) or output.stopped
            if not is_over:
                await exchange.drain()  # a slow reader: the stream gathers what comes meanwhile
        if output.stopped:
            stream.cancel("stop")
        text = output.finish()
        choice.reason = self._reason(choice, stream.finish)
        return ChoiceEnd(prefix + text, last_logprobs + output.take_logprobs(), choice.reason)

    def _reason(self, choice: Choice, finish: GenerationFinish | None) -> FinishReason:
        """Why a choice ended; also records how much of its prompt was cached. Raises GenerationFailed."""
        assert finish is not None, "an ended stream has a finish"
        if finish.reason in ("abort", "error") and not choice.output.stopped:
            raise GenerationFailed(finish)
        if choice.index % self._choices_per_prompt == 0:
            self._num_cached_tokens += finish.usage.num_cached_tokens
        return "stop" if choice.output.stopped else finish.reason

    def _explained(self) -> bytes:
        """The explanation of each choice as JSON; empty if the client did not ask for it."""
        if not self._explains:
            return b""
        return orjson.dumps({"explain": explained_now(choice.stream.record for choice in self._choices)})

    def _usage(self) -> TokenUsage:
        num_output_tokens = sum([choice.output.num_tokens for choice in self._choices])
        return TokenUsage(self._num_prompt_tokens, num_output_tokens, self._num_cached_tokens)


def first_of(failures: BaseExceptionGroup[GenerationFailed]) -> GenerationFailed:
    """One of the failures, as the client gets a single error for all choices."""
    first = failures.exceptions[0]
    return first if isinstance(first, GenerationFailed) else first_of(first)
