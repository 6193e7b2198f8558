"""Reads JSON as it comes, without making values of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from slipstream.router.parsers.readers.text_input import MismatchError, Reading, TextInput

Write = Callable[[str], None]

# A marker (a lone surrogate) within a string is text that the vocabulary has a special token for; elsewhere it ends the
# value.
OUTSIDE = re.compile(r'[^"{}\[\]\ud800-\udfff]*+')
INSIDE = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
SCALAR = re.compile(r"[^\s,\]}\ud800-\udfff]*+")
SURROGATES = re.compile(r"[\ud800-\udfff]")
NO_ARGUMENTS = "{}"


def read_arguments(source: TextInput, write: Write) -> Reading[None]:
    """The arguments of a call: an object goes out as it comes. Some models write it as a JSON string, which is decoded,
    or write null."""
    if (yield from source.peek()) in "{[":
        yield from read_value(source, write)
        return
    pieces: list[str] = []
    yield from read_value(source, pieces.append)
    text = "".join(pieces)
    if text.startswith('"'):
        text = decoded(text)
    write(NO_ARGUMENTS if text in ("", "null") else text)


def read_value(source: TextInput, write: Write) -> Reading[None]:
    """One value, verbatim; nothing if none stands here. Raises MismatchError at a marker within it."""
    first = yield from source.peek()
    if first == '"':
        yield from read_string(source, write)
        return
    if first not in "{[":
        yield from read_run(source, SCALAR, write)
        return
    depth = 0
    while True:
        yield from read_run(source, OUTSIDE, write)
        character = source.text[source.at]
        if character == '"':
            yield from read_string(source, write)
            continue
        if character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
        else:
            raise MismatchError
        source.move_to(source.at + 1)
        write(character)
        if depth == 0:
            return


def read_string(source: TextInput, write: Write) -> Reading[None]:
    """A string with its quotes, verbatim."""
    write((yield from source.expect('"')))
    while True:
        yield from read_run(source, INSIDE, write)
        if source.text[source.at] == '"':
            break
        yield from source.wait()  # for the rest of an escape
    write((yield from source.expect('"')))


def read_text(source: TextInput) -> Reading[str]:
    """The text of a string."""
    pieces: list[str] = []
    yield from read_string(source, pieces.append)
    return decoded("".join(pieces))


def read_run(source: TextInput, pattern: re.Pattern[str], write: Write) -> Reading[None]:
    """All characters that the pattern takes. The one that ends them is there then."""
    while True:
        match = pattern.match(source.text, source.at)
        end = match.end() if match else source.at
        if end > source.at:
            write(source.text[source.at : end])
            source.move_to(end)
        if end < len(source.text):
            return
        yield from source.wait()


def decoded(string: str) -> str:
    """The text of a JSON string; what stands between the quotes if that is no JSON."""
    try:
        text: str = json.loads(string, strict=False)
        return text
    except ValueError:
        return string[1:-1]


def json_of(value: object) -> str:
    """The value as JSON. Raises ValueError or TypeError if JSON cannot express it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def escaped(text: str) -> str:
    """A part of a text, as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
