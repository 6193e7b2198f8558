"""One choice of an answer: takes the tokens of its stream, and passes on their text as it becomes certain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple

from slipstream.router.api.exchange_context import ApiExchange
from slipstream.router.api.generation.answer.answer_format import AnswerFormat
from slipstream.router.api.generation.answer.best_of import MeanLogprob
from slipstream.router.api.generation.answer.output import AnswerReason, ChoiceOutput, Out, TokenEntry
from slipstream.router.http.failover.stream_checkpoint import StreamCheckpoint
from slipstream.router.observability.front_counts import RequestMeter
from slipstream.router.protocol.generation import Delta
from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.requests.stream import GenerationStream

OnText = Callable[[Out, list[TokenEntry]], None]


@dataclass(slots=True)
class Choice(Generic[Out]):
    """A choice and its stream. `prefix` is to be put before the output (the prompt, if it is to be echoed). With
    `hides_stop_token`, a stop token that ends the output is not part of the text. `reason` is set when the choice ends
    normally. `score` is there if only the best choices are sent. `add_ids` takes the ids of the output's tokens, those
    of its end included, if they are sent; then every delta leaves in a chunk, with text or without."""

    index: int
    stream: GenerationStream
    output: ChoiceOutput[Out]
    meter: RequestMeter
    prefix: Out
    hides_stop_token: bool = True
    reason: AnswerReason | None = None
    score: MeanLogprob | None = None
    add_ids: Callable[[list[int]], None] | None = None

    def record_end(self) -> None:
        """Record the end in the metrics, however the choice ended. There, as in vLLM's, calls are a `stop`."""
        finish = self.stream.finish
        reason = self.reason or (finish.reason if finish is not None else "abort")
        usage = finish.usage if finish is not None else None
        self.meter.served_by(self.stream.record.version)  # also of one that got no token
        self.meter.finish(
            "stop" if reason == "tool_calls" else reason, self.output.num_tokens, usage, self.stream.record.timeline
        )


class HeldBack(NamedTuple, Generic[Out]):
    """What was held back until the end of a choice."""

    text: Out
    logprobs: list[TokenEntry]


class ChoiceRun(Generic[Out]):
    """Runs one choice to its end. `on_text` gets text, or events, with its log-probabilities, in order; not the last
    part, which leaves together with the reason why the choice ended."""

    __slots__ = (
        "_checkpoint",
        "_choice",
        "_exchange",
        "_form",
        "_held_back",
        "_nothing",
        "_on_text",
        "_prefix",
        "_record",
        "_version",
    )

    def __init__(
        self,
        choice: Choice[Out],
        exchange: ApiExchange,
        form: AnswerFormat[Out],
        checkpoint: StreamCheckpoint,
        on_text: OnText[Out],
    ) -> None:
        self._choice: Choice[Out] = choice
        self._record = choice.stream.record
        self._exchange = exchange
        self._form: AnswerFormat[Out] = form
        self._checkpoint = checkpoint
        self._on_text: OnText[Out] = on_text
        self._prefix: Out = choice.prefix  # precedes the next text
        self._nothing: Out = choice.prefix[:0]
        self._version = ""  # of the model, as passed to `form`
        self._held_back: list[TokenEntry] = []

    async def to_end(self) -> HeldBack[Out]:
        """Returns when nothing more comes, however that ended."""
        stream, output = self._choice.stream, self._choice.output
        self._resume()
        is_over = output.stopped
        while not is_over:
            is_over = await stream.each(self._take) or output.stopped
            if not is_over:
                await self._exchange.drain()  # a slow reader: the stream gathers what comes meanwhile
        if output.stopped:
            stream.cancel("stop")
        text = self._prefix + output.finish()
        return HeldBack(text, self._held_back + output.take_logprobs())

    def _resume(self) -> None:
        """Begins where the previous router was killed."""
        choice = self._choice
        resumed = self._checkpoint.resumed(choice.index)
        if resumed is None:
            return
        self._served_by(resumed.version)
        token_ids = unpack_ids(resumed.output_ids)
        text = choice.output.add([(token_id, None) for token_id in token_ids])
        has_ids = choice.add_ids is not None and bool(token_ids)
        if choice.add_ids is not None:
            choice.add_ids(token_ids)
        if text or has_ids:
            if self._exchange.head_sent:
                self._form.text_chunk(choice.index, self._prefix + text, [])  # which the client has
            else:
                self._on_text(self._prefix + text, [])
            self._prefix = self._nothing

    def _served_by(self, version: str) -> None:
        self._version = version
        self._form.served_by(version)
        self._choice.meter.served_by(version)

    def _take(self, delta: Delta) -> bool:
        """Takes a delta. Returns whether the stream may continue at once."""
        choice, output = self._choice, self._choice.output
        version = self._record.version
        if version != self._version:
            self._served_by(version)
        choice.meter.tokens(len(delta))
        finish = choice.stream.finish  # set by the time the last delta arrives
        ends_with_stop_token = finish is not None and delta[-1][0] == finish.stop_token_id
        num_before = output.num_tokens
        text = output.add(delta, ends_with_stop_token and choice.hides_stop_token)
        if choice.score is not None:
            choice.score.add(delta[: output.num_tokens - num_before])
        if choice.add_ids is not None:
            choice.add_ids([token_id for token_id, _ in delta[: output.num_tokens - num_before]])
        logprobs = output.take_logprobs() if output.held else []
        if output.held:
            self._checkpoint.spoil()  # they do not keep them
        if finish is not None and finish.reason in ("stop", "length"):
            self._prefix, self._held_back = self._prefix + text, logprobs
        else:
            self._checkpoint.got(choice.index, delta, version)
            if text or logprobs or choice.add_ids is not None:
                self._on_text(self._prefix + text, logprobs)
                self._prefix = self._nothing
        return not (output.stopped or self._exchange.congested)
