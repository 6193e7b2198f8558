"""Reads `{"name": ..., "arguments": {...}}`."""

from __future__ import annotations

from slipstream.router.parsers.description.elements import JsonEnvelope
from slipstream.router.parsers.readers.call_sink import CallSink
from slipstream.router.parsers.readers.json_values import NO_ARGUMENTS, read_arguments, read_text, read_value
from slipstream.router.parsers.readers.text_input import MismatchError, Reading, TextInput


def read_envelope(source: TextInput, call: CallSink, form: JsonEnvelope) -> Reading[None]:
    """Arguments that stand behind the name go out as they come, those before it when the object is complete. Raises
    MismatchError if it has no name."""
    name, call_id = "", ""
    early: list[str] = []
    has_begun = False
    yield from source.expect("{")
    while (yield from source.skip_white()) != "}":
        yield from source.accept(",")
        yield from source.skip_white()
        key = yield from read_text(source)
        yield from source.skip_white()
        yield from source.expect(":")
        value_begins = yield from source.skip_white()
        if key in form.arguments_keys and not has_begun and not early:
            if name:
                call.begin(name, call_id)
                has_begun = True
            yield from read_arguments(source, call.write if has_begun else early.append)
        elif key == form.name_key and value_begins == '"' and not name:
            name = yield from read_text(source)
        elif key == form.id_key and value_begins == '"':
            call_id = yield from read_text(source)
        else:
            yield from read_value(source, ignore)
    if not has_begun:
        if not name:
            raise MismatchError
        call.begin(name, call_id, has_arguments=bool(early))
        call.write("".join(early) or NO_ARGUMENTS)
    source.move_to(source.at + 1)


def ignore(_: str) -> None:
    """The value of a key that says nothing about the call."""
