"""The elements of a written call. A call is a sequence of them: `<tool_call>`, white space, a JSON object, ..."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
    """A fixed text. `variants` are other spellings, which are read but not asked for. An `optional` one may be
    absent."""

    text: str
    variants: tuple[str, ...] = ()
    optional: bool = False

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.text, *self.variants)


@dataclass(frozen=True, slots=True)
class Space:
    """White space of any length, also none. `text` is what the model's template writes."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class CallName:
    """The name of the function: characters other than white space, up to what comes next in the description. `prefix`
    is written before the name and does not belong to it (Kimi's `functions.`); it may be absent when it is read.

    With `numbered` the text is PREFIX NAME `:` N, where N counts the calls of the conversation. The whole of it is the
    call's id.
    """

    prefix: str = ""
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class CallId:
    """An id that the model may write, or not: `lead`, then characters other than white space."""

    lead: str


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """The arguments as a JSON object."""


@dataclass(frozen=True, slots=True)
class JsonEnvelope:
    """A JSON object with the function's name and its arguments. The grammar writes `{"name": "x", "KEY": {...}}` with
    the first of `arguments_keys`; all of them are read, in any order, and other keys are skipped."""

    name_key: str = "name"
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    id_key: str = "id"


@dataclass(frozen=True, slots=True)
class StringFlag:
    """DeepSeek's `string="true"`: whether the value behind it is a text as it stands, or JSON."""

    true: str = "true"
    false: str = "false"


KeyElement: TypeAlias = Literal | Space | StringFlag


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """A tagged text for each argument: `before_key` KEY `after_key`... VALUE `after_value`. A value that is a string
    stands as it is, without quotes and escapes; others are JSON.

    `value_on_lines`: one line break before the value and one behind it do not belong to it.
    `separator` is the white space that the template writes behind each argument.
    """

    before_key: str
    after_key: tuple[KeyElement, ...]
    after_value: str
    value_on_lines: bool = False
    separator: str = "\n"


@dataclass(frozen=True, slots=True)
class PythonArguments:
    """`(key=VALUE, key=VALUE)` with values as Python writes them."""


@dataclass(frozen=True, slots=True)
class GemmaArguments:
    """`{key:VALUE,key:VALUE}`, where `quote` stands at both ends of a string, which has no escapes. Values nest as in
    JSON; numbers, true and false are JSON's. Keys have no quotes."""

    quote: str


Body: TypeAlias = JsonArguments | JsonEnvelope | TaggedArguments | PythonArguments | GemmaArguments
Element: TypeAlias = Literal | Space | CallName | CallId | Body
BODIES = (JsonArguments, JsonEnvelope, TaggedArguments, PythonArguments, GemmaArguments)

# What a body begins with, if it has no texts of its own.
FIRST_CHARACTERS: dict[type[Body], str] = {
    JsonArguments: "{",
    JsonEnvelope: "{",
    PythonArguments: "(",
    GemmaArguments: "{",
}


def with_texts(element: Element, change: Callable[[str], str]) -> Element:
    """The element with `change` applied to each of its fixed texts."""
    match element:
        case Literal():
            return changed_literal(element, change)
        case CallId():
            return replace(element, lead=change(element.lead))
        case TaggedArguments():
            return replace(
                element,
                before_key=change(element.before_key),
                after_key=tuple(
                    changed_literal(part, change) if isinstance(part, Literal) else part for part in element.after_key
                ),
                after_value=change(element.after_value),
            )
        case GemmaArguments():
            return replace(element, quote=change(element.quote))
        case _:
            return element


def changed_literal(literal: Literal, change: Callable[[str], str]) -> Literal:
    return replace(literal, text=change(literal.text), variants=tuple(map(change, literal.variants)))
