"""Reads Gemma's dialect of JSON, and makes JSON of it as it comes."""

from __future__ import annotations

import re

from slipstream.router.parsers.description.elements import GemmaArguments
from slipstream.router.parsers.readers.call_sink import CallSink
from slipstream.router.parsers.readers.json_values import Write, escaped, json_of, read_run, read_text, read_value
from slipstream.router.parsers.readers.marker_set import marker_set
from slipstream.router.parsers.readers.tagged_arguments import read_until
from slipstream.router.parsers.readers.text_input import MismatchError, Reading, TextInput

BARE_KEY = re.compile(r"[^:,{}\[\]\ud800-\udfff]*+")
BARE_VALUE = re.compile(r"[^,{}\[\]\ud800-\udfff]*+")
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
CONSTANTS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
    "": "null",
}
CLOSING = {"{": "}", "[": "]"}


def read_gemma(source: TextInput, call: CallSink, form: GemmaArguments) -> Reading[None]:
    """The object behind its opening brace."""
    call.write("{")
    closings = ["}"]  # of the open objects and lists, the innermost last
    is_empty = True  # the innermost, so far
    while closings:
        character = yield from source.skip_white()
        if character == closings[-1]:
            source.move_to(source.at + 1)
            call.write(closings.pop())
            is_empty = False
            continue
        if character in "]}":
            raise MismatchError  # it closes something else
        if character == ",":
            source.move_to(source.at + 1)
            continue
        if not is_empty:
            call.write(", ")
        if closings[-1] == "}":
            yield from read_gemma_key(source, call.write, form.quote)
            character = yield from source.skip_white()
        is_empty = character in CLOSING
        if is_empty:
            source.move_to(source.at + 1)
            call.write(character)
            closings.append(CLOSING[character])
        else:
            yield from read_gemma_scalar(source, call.write, form.quote)


def read_gemma_key(source: TextInput, write: Write, quote: str) -> Reading[None]:
    """A key with its colon; some keys stand in quotes. Raises MismatchError if there is none."""
    if (yield from source.accept((quote,))) is not None:
        write('"')
        yield from read_quoted(source, write, quote)
        write('"')
    elif source.text[source.at] == '"':
        write(json_of((yield from read_text(source))))
    else:
        pieces: list[str] = []
        yield from read_run(source, BARE_KEY, pieces.append)
        write(json_of("".join(pieces).strip()))
    yield from source.skip_white()
    yield from source.expect(":")
    write(": ")


def read_gemma_scalar(source: TextInput, write: Write, quote: str) -> Reading[None]:
    if (yield from source.accept((quote,))) is not None:
        write('"')
        yield from read_quoted(source, write, quote)
        write('"')
    elif source.text[source.at] == '"':
        yield from read_value(source, write)
    else:
        pieces: list[str] = []
        yield from read_run(source, BARE_VALUE, pieces.append)
        text = "".join(pieces).strip()
        if not text and source.text[source.at] not in ",]}":
            raise MismatchError
        write(text if NUMBER.fullmatch(text) else CONSTANTS.get(text) or json_of(text))


def read_quoted(source: TextInput, write: Write, quote: str) -> Reading[None]:
    """A string behind its opening quote, with the closing one."""
    yield from read_until(source, marker_set((quote,)), lambda piece: write(escaped(piece)))
    yield from source.expect(quote)
