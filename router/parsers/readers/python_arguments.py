"""Reads `(key=VALUE, key=VALUE)` as Python writes it. Each argument goes out as JSON when it is complete."""

from __future__ import annotations

import json
import re

from slipstream.router.parsers.readers.call_sink import CallSink
from slipstream.router.parsers.readers.json_values import NO_ARGUMENTS, Write, json_of, read_run
from slipstream.router.parsers.readers.schema_types import NO_JSON, python_value, refuse
from slipstream.router.parsers.readers.text_input import MismatchError, Reading, TextInput

OUTSIDE = re.compile(r"""[^"'()\[\]{},\ud800-\udfff]*+""")
FORBIDDEN = frozenset("\"'()[]{},=")
INSIDE = {quote: re.compile(rf"(?:[^{quote}\\]++|\\.)*+", re.DOTALL) for quote in ("'", '"')}
KEYWORD = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)(.*)", re.DOTALL)


def read_python(source: TextInput, call: CallSink) -> Reading[None]:
    """All arguments, behind the opening parenthesis. Those without a key get the names of the function's parameters in
    their order."""
    before = "{"
    num_positional = 0
    end = ","
    while end == ",":
        pieces: list[str] = []
        end = yield from read_argument(source, pieces.append)
        text = "".join(pieces)
        if not text.strip():
            continue
        keyword = keyword_of(call.parameters, text)
        key, value = keyword or (positional_name(call.parameters, num_positional), text)
        num_positional += keyword is None
        call.write(f"{before}{json_of(key)}: {python_json(value)}")
        before = ", "
    call.write(NO_ARGUMENTS if before == "{" else "}")


def read_argument(source: TextInput, write: Write) -> Reading[str]:
    """The text of an argument. Returns the comma or parenthesis behind it, which is read, too. Raises MismatchError at
    a marker outside strings."""
    depth = 0
    while True:
        yield from read_run(source, OUTSIDE, write)
        character = source.text[source.at]
        if character in INSIDE:
            yield from read_python_string(source, write)
            continue
        if not depth and character in ",)":
            source.move_to(source.at + 1)
            return character
        if character in "([{":
            depth += 1
        elif character in ")]}":
            if not depth:
                raise MismatchError
            depth -= 1
        elif character != ",":
            raise MismatchError
        source.move_to(source.at + 1)
        write(character)


def read_python_string(source: TextInput, write: Write) -> Reading[None]:
    quote = source.text[source.at]
    write((yield from source.expect(quote)))
    while True:
        yield from read_run(source, INSIDE[quote], write)
        if source.text[source.at] == quote:
            break
        yield from source.wait()  # for the rest of an escape
    write((yield from source.expect(quote)))


def keyword_of(parameters: object, text: str) -> tuple[str, str] | None:
    """The name and the value of an argument that has a name: one of Python's, or any that the function gives to a
    parameter (`user-id`)."""
    found = KEYWORD.fullmatch(text)
    if found:
        return found[1], found[2]
    name, equals, value = text.partition("=")
    return (name.strip(), value) if equals and name.strip() in property_names(parameters) else None


def can_be_keyword(name: str) -> bool:
    """Whether a parameter's name can stand before `=`. It is not quoted there."""
    return name == name.strip() and FORBIDDEN.isdisjoint(name) and bool(name)


def property_names(parameters: object) -> list[str]:
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return list(properties) if isinstance(properties, dict) else []


def positional_name(parameters: object, index: int) -> str:
    names = property_names(parameters)
    return str(names[index]) if index < len(names) else str(index)


def python_json(text: str) -> str:
    """The JSON of a value in Python, or in JSON; else of its text."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in INSIDE and "\\" not in text and "\n" not in text:
        inner = text[1:-1]
        if text[0] not in inner:
            return json_of(inner)
    try:
        return json_of(python_value(text))
    except NO_JSON:
        pass
    try:
        json.loads(text, parse_constant=refuse)
    except NO_JSON:
        return json_of(text)
    return text
