"""The output of a response, as events that are a function of its tokens, however many of them come at once.

So the next router, which is given all tokens of a stream at once, makes the events that the client already has, and
goes on with the right `sequence_number`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.router.api.generation.answer.output import ChoiceOutput, Events, TokenEntry
from slipstream.router.api.generation.answer.output_text import OutputText
from slipstream.router.api.generation.answer.parsed_output import merged
from slipstream.router.api.generation.generation_batch import Reading
from slipstream.router.parsers.events import ArgumentsDelta, CallBegin, ContentDelta
from slipstream.router.protocol.generation import Delta
from slipstream.router.text.detokenizer import PieceTable


@dataclass(frozen=True, slots=True)
class TokenwiseReading:
    """How the outputs of a request are read; without an `inner` reading they are text."""

    inner: Reading | None
    pieces: PieceTable

    def output(self, stops: Sequence[str], include_stop: bool, min_tokens: int) -> TokenwiseOutput:
        """For one choice."""
        if self.inner is not None:
            return TokenwiseOutput(self.inner.output(stops, include_stop, min_tokens))
        return TokenwiseOutput(OutputText(self.pieces, stops, include_stop, min_tokens))


class TokenwiseOutput:
    """Log-probabilities are those of the tokens of content: in this API, they belong to a part of a message."""

    __slots__ = ("_in_call", "_inner", "_ready", "_waiting", "num_tokens", "stopped")

    def __init__(self, inner: ChoiceOutput[Any]) -> None:
        self._inner = inner
        self._waiting: list[TokenEntry] = []  # of text that the parser holds back
        self._ready: list[TokenEntry] = []
        self._in_call = False
        self.num_tokens = 0
        self.stopped = False

    @property
    def held(self) -> Sequence[TokenEntry]:
        return self._ready or self._waiting or self._inner.held

    @property
    def has_calls(self) -> bool:
        return self._inner.has_calls

    @property
    def call_names(self) -> Sequence[str]:
        return self._inner.call_names

    @property
    def stop_string(self) -> str | None:
        return self._inner.stop_string

    @property
    def num_reasoning_tokens(self) -> int | None:
        return self._inner.num_reasoning_tokens

    def add(self, delta: Delta, hides_last: bool = False) -> Events:
        """The events of each token, one after the other: those of two tokens are not one."""
        inner, last = self._inner, len(delta) - 1
        events: Events = []
        for index, pair in enumerate(delta):
            num_before = inner.num_reasoning_tokens
            made = self._as_events(inner.add([pair], hides_last and index == last))
            if inner.held:
                self._sort(made, inner.num_reasoning_tokens != num_before)
            events += made
            if inner.stopped:
                break
        self._count()
        return events

    def finish(self) -> Events:
        """End the output. Returns what was still held back."""
        events = self._as_events(self._inner.finish())
        self._sort(events)
        self._count()
        return events

    def take_logprobs(self) -> list[TokenEntry]:
        """The entries of the tokens whose content has been released since the last call."""
        entries, self._ready = self._ready, []
        return entries

    def joined(self, parts: list[Events]) -> Events:
        """All parts of an output as one."""
        return merged(event for part in parts for event in part)

    def _count(self) -> None:
        self.num_tokens, self.stopped = self._inner.num_tokens, self._inner.stopped

    def _sort(self, events: Events, is_reasoning: bool = False) -> None:
        """Entries are those of content if their text, or the text that comes with it, is content. The end of a call
        shows in no event: behind one, tokens without an event are taken for that."""
        self._waiting += self._inner.take_logprobs()
        if events:
            self._in_call = isinstance(events[-1], CallBegin | ArgumentsDelta)
        if not is_reasoning and any(isinstance(event, ContentDelta) for event in events):
            self._ready += self._waiting
            self._waiting = []
        elif events or is_reasoning or self._in_call:
            self._waiting = []

    @staticmethod
    def _as_events(made: str | Events) -> Events:
        if isinstance(made, str):
            return [ContentDelta(made)] if made else []
        return made
