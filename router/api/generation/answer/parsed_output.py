"""The output of one choice, read by a parser: reasoning, content, calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from slipstream.router.api.generation.answer.output import Events, TokenEntry
from slipstream.router.api.generation.answer.output_text import OutputText
from slipstream.router.parsers.description.output_format import BoundFormat
from slipstream.router.parsers.events import ArgumentsDelta, CallEnd, ContentDelta, OutputEvent, ReasoningDelta
from slipstream.router.parsers.output_parser import OutputParser
from slipstream.router.protocol.generation import Delta
from slipstream.router.text.detokenizer import PieceTable


@dataclass(frozen=True, slots=True)
class OutputReading:
    """How the outputs of a request are read. `pieces` shows the markers of `form`. `tools` gives the schemas of the
    tools' parameters by name. With `shows_reasoning` False it is counted, and left out."""

    form: BoundFormat
    pieces: PieceTable
    tools: Mapping[str, Any] = field(default_factory=dict)
    begins_in_reasoning: bool = False
    reads_calls: bool = False
    max_calls: int | None = None
    shows_reasoning: bool = True

    def output(self, stops: Sequence[str], include_stop: bool, min_tokens: int) -> ParsedOutput:
        """For one choice."""
        return ParsedOutput(OutputText(self.pieces, stops, include_stop, min_tokens), self)


class ParsedOutput:
    """Like OutputText, of which it reads the text token by token: how many tokens come at once makes no difference.
    `stopped` is set, too, when the last call that is allowed is complete."""

    __slots__ = (
        "_num_reasoning_tokens",
        "_parser",
        "_reads_reasoning",
        "_shows_reasoning",
        "_text",
        "num_tokens",
        "stopped",
    )

    def __init__(self, text: OutputText, reading: OutputReading) -> None:
        self._text = text
        self._parser = OutputParser(
            reading.form,
            tools=reading.tools,
            begins_in_reasoning=reading.begins_in_reasoning,
            reads_calls=reading.reads_calls,
            max_calls=reading.max_calls,
        )
        self._shows_reasoning = reading.shows_reasoning
        self.num_tokens = 0
        form = reading.form.format
        self._reads_reasoning = form.reasoning is not None or form.channels is not None
        self._num_reasoning_tokens = 0
        self.stopped = False

    @property
    def held(self) -> Sequence[TokenEntry]:
        return self._text.held

    @property
    def has_calls(self) -> bool:
        return self._parser.has_calls

    @property
    def call_names(self) -> Sequence[str]:
        return self._parser.call_names

    @property
    def stop_string(self) -> str | None:
        return self._text.stop_string

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Those of the output; None: the format has no reasoning."""
        return self._num_reasoning_tokens if self._reads_reasoning else None

    def add(self, delta: Delta, hides_last: bool = False) -> Events:
        """What became certain with `delta`. Neighbouring parts of a text are one."""
        text, parser = self._text, self._parser
        events: Events = []
        for pair in delta[:-1] if hides_last else delta:
            was_reasoning = parser.in_reasoning
            piece = text.add([pair])
            if piece:
                events += parser.feed(piece)
            if was_reasoning or parser.in_reasoning:  # the token that ends it is a part of it
                self._num_reasoning_tokens += 1
            if text.stopped or parser.is_over:
                self.stopped = text.stopped = True
                break
        else:
            text.num_tokens += hides_last
        self.num_tokens = text.num_tokens
        return self._shown(events)

    def finish(self) -> Events:
        """End the output. Returns what was held back; nothing behind the last call."""
        if self._parser.is_over:
            return []
        events = self._parser.feed(self._text.finish())
        self.stopped = self._text.stopped
        return self._shown([*events, *self._parser.finish()])

    def take_logprobs(self) -> list[TokenEntry]:
        """The entries of the tokens whose text has been released since the last call. The parser may still hold it
        back."""
        return self._text.take_logprobs()

    def joined(self, parts: list[Events]) -> Events:
        """All parts of an output as one."""
        return merged(event for part in parts for event in part)

    def _shown(self, events: Events) -> Events:
        """Those that are sent."""
        if not self._shows_reasoning:
            events = [event for event in events if not isinstance(event, ReasoningDelta)]
        if len(events) > 1:
            return merged(events)
        return [] if events and isinstance(events[0], CallEnd) else events


def merged(events: Iterable[OutputEvent]) -> Events:
    """The events without the ends of calls, with neighbouring parts of one text as one."""
    made: Events = []
    texts: list[str] = []  # of the event that comes next
    for event, following in pairwise(chain((one for one in events if not isinstance(one, CallEnd)), (None,))):
        if isinstance(event, ContentDelta | ReasoningDelta | ArgumentsDelta):
            texts.append(event.text)
            if type(event) is type(following) and _index(event) == _index(following):
                continue
            text, texts = "".join(texts), []
            made.append(ArgumentsDelta(event.index, text) if isinstance(event, ArgumentsDelta) else type(event)(text))
        elif event is not None:
            made.append(event)
    return made


def _index(event: OutputEvent | None) -> int:
    return event.index if isinstance(event, ArgumentsDelta) else 0
