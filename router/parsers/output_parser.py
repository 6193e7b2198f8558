"""Takes a model's output apart, in pieces of any size."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.router.parsers.channels_reader import ChannelsReader
from slipstream.router.parsers.description.output_format import BoundFormat
from slipstream.router.parsers.events import OutputEvent
from slipstream.router.parsers.output_parts import OutputParts
from slipstream.router.parsers.parts_reader import PartsReader
from slipstream.router.parsers.readers.text_input import EndOfTextError, Reading, TextInput


class OutputParser:
    """Reads one output. The events of all pieces together do not depend on how the text was cut, and the time is linear
    in its length. No text makes it raise an error.

    `tools` gives the JSON schemas of the parameters by the functions' names: formats without types in their text take
    them from there. `max_calls`: what comes behind so many calls is not read.
    """

    def __init__(
        self,
        form: BoundFormat,
        *,
        tools: Mapping[str, Any] = {},
        begins_in_reasoning: bool = False,
        reads_calls: bool = True,
        max_calls: int | None = None,
    ) -> None:
        self._source = TextInput()
        self._output = OutputParts(self._source, form, tools, max_calls)
        self._reading = self._read(form, begins_in_reasoning, reads_calls)
        if begins_in_reasoning:
            self._advance()

    @property
    def in_reasoning(self) -> bool:
        return self._output.in_reasoning

    @property
    def has_calls(self) -> bool:
        """Whether the output has calls, none of which is cut off."""
        return 0 < self._output.num_calls == self._output.num_begun

    @property
    def call_names(self) -> Sequence[str]:
        """The tools that calls were begun of, in order."""
        return self._output.call_names

    @property
    def is_over(self) -> bool:
        """Whether `max_calls` calls are complete."""
        return self._output.is_over

    def feed(self, text: str) -> list[OutputEvent]:
        """What has become certain with `text`. Neighbouring deltas of one kind are one."""
        self._source.add(text)
        self._advance()
        return self._output.events.take()

    def finish(self) -> list[OutputEvent]:
        """What was held back. A call that is still open is ended as it is."""
        self._source.end()
        self._advance()
        self._output.finish()
        return self._output.events.take()

    def _advance(self) -> None:
        """Read as far as the text goes."""
        next(self._reading, None)

    def _read(self, form: BoundFormat, begins_in_reasoning: bool, reads_calls: bool) -> Reading[None]:
        channels = form.format.channels
        reader: ChannelsReader | PartsReader
        if channels is not None:
            reader = ChannelsReader(channels, self._source, self._output, reads_calls)
        else:
            reader = PartsReader(form.format, self._source, self._output, reads_calls)
        with contextlib.suppress(EndOfTextError):
            yield from reader.read(begins_in_reasoning)
