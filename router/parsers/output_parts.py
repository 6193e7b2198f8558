"""The parts of an output, as they come, and the events that are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.router.parsers.description.output_format import BoundFormat
from slipstream.router.parsers.events import (
    ArgumentsDelta,
    CallBegin,
    CallEnd,
    ContentDelta,
    OutputEvent,
    ReasoningDelta,
)
from slipstream.router.parsers.readers.json_values import SURROGATES, json_of
from slipstream.router.parsers.readers.text_input import MismatchError, TextInput
from slipstream.router.parsers.text_writer import TextWriter


class EventBuffer:
    """Events in their order, with neighbouring deltas of one kind merged."""

    def __init__(self) -> None:
        self._events: list[OutputEvent] = []
        self._pieces: list[str] = []
        self._kind: type[ContentDelta | ReasoningDelta] | None = None
        self._index = 0  # of the call whose arguments the pieces are, if they are of no other kind

    def add_text(self, kind: type[ContentDelta | ReasoningDelta] | None, text: str, index: int = 0) -> None:
        """Content, reasoning, or arguments (None)."""
        if not text:
            return
        if kind is not self._kind or index != self._index:
            self._flush()
            self._kind, self._index = kind, index
        self._pieces.append(text)

    def add(self, event: CallBegin | CallEnd) -> None:
        self._flush()
        self._events.append(event)

    def take(self) -> list[OutputEvent]:
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        if self._pieces:
            text = "".join(self._pieces)
            self._events.append(self._kind(text) if self._kind else ArgumentsDelta(self._index, text))
            self._pieces.clear()


class OutputParts:
    """Content, reasoning and calls. `tools` and `max_calls`: see OutputParser."""

    def __init__(self, source: TextInput, form: BoundFormat, tools: Mapping[str, Any], max_calls: int | None) -> None:
        self.source = source
        self.token_texts = {mark: json_of(token)[1:-1] for token, mark in form.special.items()}
        self.tools = tools
        self.events = EventBuffer()
        self.content = TextWriter(lambda text: self.events.add_text(ContentDelta, text))
        self.reasoning = TextWriter(lambda text: self.events.add_text(ReasoningDelta, text))
        self.in_reasoning = False
        self.call_names: list[str] = []
        self.num_calls = 0  # complete
        self._max_calls = max_calls

    @property
    def num_begun(self) -> int:
        """Calls, complete or not."""
        return len(self.call_names)

    @property
    def is_over(self) -> bool:
        return self._max_calls is not None and self.num_calls >= self._max_calls

    def begin_reasoning(self) -> None:
        self.content.at_marker()
        self.reasoning.at_marker()
        self.in_reasoning = True

    def end_reasoning(self) -> None:
        self.reasoning.at_marker()
        self.in_reasoning = False

    def finish(self) -> None:
        self.reasoning.finish()
        self.content.finish()


class CallWriter:
    """Writes the events of a call that is being read: the readers' CallSink. With `only_tools` it must be one of the
    request's functions, or have arguments at least."""

    def __init__(self, output: OutputParts, only_tools: bool) -> None:
        self._output = output
        self._only_tools = only_tools
        self._index = output.num_begun
        self.has_begun = False
        self.parameters: Any = None

    def begin(self, name: str, call_id: str, has_arguments: bool = True) -> None:
        output = self._output
        if self._only_tools and not (name in output.tools if output.tools else has_arguments):
            raise MismatchError
        output.source.release()
        output.content.at_marker()
        name, call_id = (SURROGATES.sub("\ufffd", text) for text in (name, call_id))
        output.call_names.append(name)
        output.events.add(CallBegin(self._index, name, call_id))
        self.parameters = output.tools.get(name)
        self.has_begun = True

    def write(self, fragment: str) -> None:
        """Special tokens within it stand in strings: there they are their texts."""
        if SURROGATES.search(fragment):
            texts = self._output.token_texts
            fragment = SURROGATES.sub(lambda mark: texts.get(mark[0], "\ufffd"), fragment)
        self._output.events.add_text(None, fragment, self._index)

    def end(self, is_complete: bool) -> None:
        self._output.events.add(CallEnd(self._index))
        self._output.num_calls += is_complete
