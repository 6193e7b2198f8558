"""Reads an output of reasoning, content and calls, which markers tell apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipstream.router.parsers.description.elements import Element, Literal, Space
from slipstream.router.parsers.description.output_format import CallsPart, OutputFormat, ReasoningPart
from slipstream.router.parsers.output_parts import CallWriter, OutputParts
from slipstream.router.parsers.readers.call_reader import read_call, read_literals
from slipstream.router.parsers.readers.json_values import SURROGATES, read_run
from slipstream.router.parsers.readers.marker_set import marker_set
from slipstream.router.parsers.readers.text_input import EndOfTextError, MismatchError, Reading, TextInput
from slipstream.router.parsers.text_writer import TextWriter

WHITE_SPACE = re.compile(r"[ \t\r\n]*+")
MIN_STRAY = 4  # characters of a closing text that is taken away where it stands alone (not `]`, not three backticks)


class PartsReader:
    """What belongs to no part is content."""

    def __init__(self, form: OutputFormat, source: TextInput, output: OutputParts, reads_calls: bool) -> None:
        self._source = source
        self._output = output
        self._hidden = form.hidden
        self._reasoning = form.reasoning
        self._has_reasoned = False
        self._calls = form.calls if reads_calls else None
        self._starts = (self._calls.start,) if self._calls is not None and self._calls.start is not None else ()

    def read(self, begins_in_reasoning: bool) -> Reading[None]:
        """The whole output. Raises EndOfTextError, or returns when no more is asked for."""
        if begins_in_reasoning and self._reasoning is not None:
            yield from self._read_reasoning(self._reasoning)
        while not self._output.is_over:
            at_start = self._output.content.is_empty and not self._output.num_begun
            if not at_start or not (yield from self._read_start()):
                yield from self._read_content()

    def _markers_in_content(self) -> tuple[str, ...]:
        reasoning = self._reasoning.opens if self._reasoning is not None and self._reasoning.anywhere else ()
        if self._calls is None:
            return (*reasoning, *self._hidden)
        closings = closing_texts(self._calls) if self._output.num_begun else ()
        return (*self._calls.markers, *reasoning, *self._hidden, *closings)

    def _read_text(self, writer: TextWriter, markers: tuple[str, ...]) -> Reading[str]:
        """The text before one of the markers. Returns the marker, which is not read."""
        source, texts = self._source, marker_set(markers)
        while True:
            end, found = texts.find(source.text, source.at, source.is_final)
            writer.write(source.text[source.at : end])
            source.move_to(end)
            if found is not None:
                return found
            yield from source.wait()

    def _read_content(self) -> Reading[None]:
        """Content up to a marker, and what begins there."""
        marker = yield from self._read_text(self._output.content, self._markers_in_content())
        if self._calls is not None and marker in self._calls.markers:
            yield from self._read_calls(self._calls, is_marked=True)
        elif self._reasoning is not None and marker in self._reasoning.opens:
            yield from self._read_reasoning(self._reasoning)
        else:
            self._source.move_to(self._source.at + len(marker))
            self._output.content.at_marker()

    def _read_start(self) -> Reading[bool]:
        """What counts only where content may begin: reasoning, and calls without a marker. Returns whether it was
        there."""
        yield from read_run(self._source, WHITE_SPACE, self._output.content.write)
        reasoning = None if self._has_reasoned else self._reasoning
        if reasoning is not None and (yield from self._source.sees(reasoning.opens)) is not None:
            yield from self._read_reasoning(reasoning)
            return True
        if self._calls is not None and self._source.text.startswith(self._starts, self._source.at):
            yield from self._read_calls(self._calls, is_marked=False)
            return True
        return False

    def _read_reasoning(self, reasoning: ReasoningPart) -> Reading[None]:
        """A section of reasoning. Its opening text may have stood in the prompt, and may be repeated."""
        self._has_reasoned = True
        self._output.begin_reasoning()
        yield from self._source.skip_white()
        yield from self._source.accept(reasoning.opens)
        markers = self._calls.markers if self._calls is not None else ()
        special_markers = tuple(marker for marker in markers if SURROGATES.search(marker))
        marker = yield from self._read_text(self._output.reasoning, (*reasoning.closes, *special_markers))
        if marker not in special_markers:
            self._source.move_to(self._source.at + len(marker))
        self._output.end_reasoning()

    def _read_calls(self, calls: CallsPart, is_marked: bool) -> Reading[None]:
        """Calls from their first text on. What turns out to be none is content."""
        source, output = self._source, self._output
        source.mark()
        try:
            yield from read_literals(source, calls.opening)
            yield from self._read_call(calls, is_marked)
            while not output.is_over and (yield from self._goes_on(calls)):
                yield from self._read_call(calls, is_marked)
        except MismatchError:
            output.content.write(source.release())
        except EndOfTextError:
            begun = source.release_all()
            if is_marked and is_call_begun(begun, calls.markers):
                output.content.at_marker()
            else:
                output.content.write(begun)
            raise
        source.drop_unfinished((*closing_texts(calls), *calls.markers))

    def _read_call(self, calls: CallsPart, is_marked: bool) -> Reading[None]:
        """One call. Raises MismatchError if it is none, or is written otherwise."""
        elements, tail = calls.call[: calls.body + 1], calls.call[calls.body + 1 :]
        call = CallWriter(self._output, only_tools=not is_marked)
        try:
            yield from read_call(self._source, call, elements, first_texts(tail))
        except (MismatchError, EndOfTextError) as error:
            if call.has_begun:
                call.end(is_complete=isinstance(error, MismatchError))
            raise
        call.end(is_complete=True)
        if not self._output.is_over:
            yield from read_literals(self._source, tail)

    def _goes_on(self, calls: CallsPart) -> Reading[bool]:
        """Behind a call: whether another one follows. Reads what stands between, or else the closing."""
        source = self._source
        closings, nexts = first_texts(calls.closing), first_texts((*calls.separator, *calls.call))
        if not calls.closing and not first_texts(calls.separator):
            return False  # each call has a marker of its own
        source.mark()
        yield from source.skip_white()
        found = yield from source.sees((*closings, *nexts))
        if found in nexts:
            yield from read_literals(source, calls.separator)
            return True
        source.release()
        if found in closings:
            yield from self._read_closing(calls.closing)
        return False

    def _read_closing(self, elements: Sequence[Element]) -> Reading[None]:
        """As much of the closing as is there."""
        for element in elements:
            match element:
                case Space():
                    yield from self._source.skip_white()
                case Literal():
                    found = yield from self._source.accept(element.spellings)
                    if found is None and not element.optional:
                        return


def is_call_begun(text: str, markers: Sequence[str]) -> bool:
    """Whether what may become a call at the end of the output is one that was cut off, and not talk of a marker: it
    begins with a special token, or goes on behind the marker as a call does."""
    marker = max((one for one in markers if text.startswith(one)), key=len, default=text)
    return SURROGATES.match(text) is not None or bool(text[len(marker) :].strip())


def first_texts(elements: Sequence[Element]) -> tuple[str, ...]:
    """The texts any of which these elements begin with."""
    found: list[str] = []
    for element in elements:
        if isinstance(element, Literal):
            found += element.spellings
        if not isinstance(element, Space) and not (isinstance(element, Literal) and element.optional):
            break
    return tuple(found)


def closing_texts(calls: CallsPart) -> tuple[str, ...]:
    """Texts behind a call, which are taken away also where they stand alone."""
    literals = [element for element in (*calls.call[calls.body :], *calls.closing) if isinstance(element, Literal)]
    texts = (text for literal in literals for text in literal.spellings)
    return tuple(text for text in texts if len(text) >= MIN_STRAY and not SURROGATES.search(text))
