"""Reads arguments that have tags of their own, and makes JSON of them as they come."""

from __future__ import annotations

from slipstream.router.parsers.description.elements import KeyElement, Literal, Space, StringFlag, TaggedArguments
from slipstream.router.parsers.readers.call_sink import CallSink
from slipstream.router.parsers.readers.json_values import NO_ARGUMENTS, Write, escaped, json_of
from slipstream.router.parsers.readers.marker_set import MarkerSet, marker_set
from slipstream.router.parsers.readers.schema_types import TEXT, TEXT_OR_NULL, json_value, types_of
from slipstream.router.parsers.readers.text_input import MismatchError, Reading, TextInput

MAX_KEY = 512
JSON = frozenset({"any"})  # the value is JSON, whatever the schema says


def read_tagged(source: TextInput, call: CallSink, form: TaggedArguments) -> Reading[None]:
    """All arguments."""
    line_end = ("\n",) if form.value_on_lines else ()
    value_ends = tuple(end + form.after_value for end in ("", *line_end))
    key_end, *after_key = form.after_key
    assert isinstance(key_end, Literal)
    before = "{"
    while True:
        yield from source.skip_white()
        if (yield from source.accept((form.before_key,))) is None:
            break
        key = yield from read_key(source, key_end.text)
        is_text = yield from read_behind_key(source, after_key)
        call.write(f"{before}{json_of(key)}: ")
        before = ", "
        yield from source.accept(line_end)
        types = types_of(call.parameters, key) if is_text is None else TEXT if is_text else JSON
        yield from read_tagged_value(source, call.write, types, value_ends)
        yield from source.expect(*value_ends)
    call.write(NO_ARGUMENTS if before == "{" else "}")


def read_key(source: TextInput, end: str) -> Reading[str]:
    pieces: list[str] = []
    yield from read_until(source, marker_set((end, "\n")), pieces.append)
    yield from source.expect(end)
    key = "".join(pieces).strip()
    if len(key) > MAX_KEY:
        raise MismatchError
    return key


def read_behind_key(source: TextInput, elements: list[KeyElement]) -> Reading[bool | None]:
    """What stands between key and value. Returns whether the value is a text; None: it is not said."""
    is_text: bool | None = None
    for element in elements:
        match element:
            case Literal():
                yield from source.expect(*element.spellings)
            case Space():
                yield from source.skip_white()
            case StringFlag():
                is_text = (yield from source.expect(element.true, element.false)) == element.true
    return is_text


def read_tagged_value(source: TextInput, write: Write, types: frozenset[str], ends: tuple[str, ...]) -> Reading[None]:
    """A value that is a string for sure goes out as it comes, another when it is complete."""
    markers = marker_set(ends)
    if types == TEXT_OR_NULL:
        nulls = tuple("null" + end for end in ends)
        null = yield from source.accept(nulls)
        if null is not None:
            source.move_to(source.at - len(null) + len("null"))
            write("null")
            return
        types = TEXT
    if types == TEXT:
        write('"')
        yield from read_until(source, markers, lambda piece: write(escaped(piece)))
        write('"')
        return
    pieces: list[str] = []
    yield from read_until(source, markers, pieces.append)
    write(json_value("".join(pieces), types))


def read_until(source: TextInput, markers: MarkerSet, write: Write) -> Reading[None]:
    """The text before the first of the markers."""
    while True:
        end, found = markers.find(source.text, source.at)
        if end > source.at:
            write(source.text[source.at : end])
            source.move_to(end)
        if found is not None:
            return
        yield from source.wait()
