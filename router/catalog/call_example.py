"""Shows a model how to write a call, where its chat template does not."""

from __future__ import annotations

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
    StringFlag,
    TaggedArguments,
)
from slipstream.router.parsers.description.output_format import CallsPart

NAME, OBJECT, KEY, VALUE = "<function-name>", "<args-json-object>", "<argument-name>", "<value>"


def call_example(calls: CallsPart) -> str:
    """A call in this form, with names in the place of its parts."""
    return "".join(map(_shown, (*calls.opening, *calls.call, *calls.closing)))


def _shown(element: Element | StringFlag) -> str:
    match element:
        case Literal(text) | Space(text):
            return text
        case CallName(prefix, numbered):
            return f"{prefix}{NAME}{':0' if numbered else ''}"
        case CallId():
            return ""
        case JsonArguments():
            return OBJECT
        case JsonEnvelope(name_key, (arguments_key, *_)):
            return f'{{"{name_key}": {NAME}, "{arguments_key}": {OBJECT}}}'
        case TaggedArguments():
            behind = "".join(map(_shown, element.after_key))
            value = f"\n{VALUE}\n" if element.value_on_lines else VALUE
            return f"{element.before_key}{KEY}{behind}{value}{element.after_value}{element.separator}"
        case StringFlag(true):
            return true
        case PythonArguments():
            return f"({KEY}={VALUE})"
        case GemmaArguments():
            return f"{{{KEY}:{VALUE}}}"
    raise AssertionError(element)
