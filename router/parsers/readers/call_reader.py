"""Reads the elements of a call in their order."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipstream.router.parsers.description.elements import (
    CallId,
    CallName,
    Element,
    GemmaArguments,
    JsonArguments,
    JsonEnvelope,
    Literal,
    PythonArguments,
    Space,
    TaggedArguments,
)
from slipstream.router.parsers.readers.call_sink import CallSink
from slipstream.router.parsers.readers.gemma_arguments import read_gemma
from slipstream.router.parsers.readers.json_envelope import read_envelope
from slipstream.router.parsers.readers.json_values import NO_ARGUMENTS, read_arguments, read_run
from slipstream.router.parsers.readers.python_arguments import read_python
from slipstream.router.parsers.readers.tagged_arguments import read_tagged
from slipstream.router.parsers.readers.text_input import MismatchError, Reading, TextInput

NAME = re.compile(r"""[^\s<>{}()\[\]"'`=,;\ud800-\udfff]*+""")
NUMBERED = re.compile(r"(.+):\d+", re.ASCII)
MAX_NAME = 256


def read_literals(source: TextInput, elements: Sequence[Element]) -> Reading[None]:
    """Fixed texts and white space. Raises MismatchError."""
    for element in elements:
        match element:
            case Literal():
                found = yield from source.accept(element.spellings)
                if found is None and not element.optional:
                    raise MismatchError
            case Space():
                yield from source.skip_white()


def read_call(source: TextInput, call: CallSink, elements: Sequence[Element], behind: Sequence[str]) -> Reading[None]:
    """A call up to the end of its arguments, `behind` which one of these texts stands. Raises MismatchError if it is
    written otherwise."""
    name, call_id = "", ""
    for element in elements:
        match element:
            case Literal() | Space():
                yield from read_literals(source, (element,))
            case CallName():
                name, call_id = yield from read_name(source, element)
            case CallId():
                call_id = yield from read_id(source, element)
            case JsonEnvelope():
                yield from read_envelope(source, call, element)
            case JsonArguments():
                call.begin(name, call_id)
                if (yield from source.peek()) in '{["':
                    yield from read_arguments(source, call.write)
                else:
                    call.write(NO_ARGUMENTS)
            case TaggedArguments():
                yield from source.skip_white()
                if (yield from source.sees((element.before_key, *behind))) is None:
                    raise MismatchError
                call.begin(name, call_id)
                yield from read_tagged(source, call, element)
            case PythonArguments():
                yield from source.expect("(")
                call.begin(name, call_id)
                yield from read_python(source, call)
            case GemmaArguments():
                yield from source.expect("{")
                call.begin(name, call_id)
                yield from read_gemma(source, call, element)


def read_name(source: TextInput, element: CallName) -> Reading[tuple[str, str]]:
    """Name and id. Raises MismatchError if there is none."""
    pieces: list[str] = []
    yield from read_run(source, NAME, pieces.append)
    text = "".join(pieces)
    numbered = NUMBERED.fullmatch(text) if element.numbered else None
    name = (numbered[1] if numbered else text).removeprefix(element.prefix)
    if not name or len(name) > MAX_NAME:
        raise MismatchError
    return name, text if numbered else ""


def read_id(source: TextInput, element: CallId) -> Reading[str]:
    """An id behind its lead; empty if none is written."""
    if (yield from source.accept((element.lead,))) is None:
        return ""
    pieces: list[str] = []
    yield from read_run(source, NAME, pieces.append)
    return "".join(pieces)
