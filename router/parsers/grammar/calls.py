"""Calls of tools as rules of a grammar, from the description of their format."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from slipstream.router.parsers.description.elements import (
    BODIES,
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
from slipstream.router.parsers.description.output_format import CallsPart
from slipstream.router.parsers.grammar.gemma_arguments import gemma_arguments
from slipstream.router.parsers.grammar.lark_rules import SPACE, LarkRules, either, sequence
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens, quoted
from slipstream.router.parsers.grammar.python_arguments import python_arguments
from slipstream.router.parsers.grammar.schema_parts import object_options
from slipstream.router.parsers.grammar.tagged_arguments import can_be_key, tagged_arguments
from slipstream.router.parsers.grammar.tool_grammar import ToolGrammar
from slipstream.router.parsers.readers.python_arguments import can_be_keyword

CALL_ID = r"/[A-Za-z0-9]{9}/"  # Mistral's
CALL_NUMBER = r"/[0-9]{1,4}/"


class _CallElements(NamedTuple):
    before: tuple[Element, ...]  # the same for all tools
    of_tool: tuple[Element, ...]  # from the name on


def calls_rule(
    rules: LarkRules, markers: MarkerTokens, part: CallsPart, tools: Sequence[ToolGrammar], *, is_parallel: bool
) -> str:
    """The name of a rule for one call or more, from the first marker to where the output may end. The first marker may
    have any of its spellings, since it may have been written freely."""
    writer = _CallsWriter(rules, markers)
    lead, opening = _split_lead((*part.opening, *part.call))
    call = _split_call(part.call)
    of_tools = rules.rule(either(writer.of_tool(call.of_tool, tool) for tool in tools))
    before_first = opening[: len(opening) - len(call.of_tool)]
    first = sequence(writer.any_spelling(lead), writer.all(before_first), of_tools)
    more = sequence(writer.all(part.separator), writer.all(call.before), of_tools)
    closing = writer.all(part.closing)
    return rules.rule(sequence(first, f"({more})*" if is_parallel else "", closing, SPACE))


def unwritable_name(part: CallsPart, tool: ToolGrammar) -> str | None:
    """A required property whose name the format cannot write, so that its arguments never fit the schema."""
    can_be_written: Callable[[str], bool]
    for element in part.call:
        match element:
            case TaggedArguments():
                can_be_written = partial(can_be_key, element)
            case PythonArguments():
                can_be_written = can_be_keyword
            case _:
                continue
        for parts in object_options(tool.rewritten, tool.definitions) or ():
            for name in parts.properties:
                if name in parts.required and not can_be_written(name):
                    return name
    return None


def start_of_call(part: CallsPart, tool: str) -> str:
    """How a call of a tool begins, up to its name, in a format whose calls have no marker; without white space."""
    written = []
    for element in (*part.opening, *part.call):
        match element:
            case Literal(optional=False):
                written.append(element.text)
            case CallName():
                written.append(element.prefix + tool)
            case JsonEnvelope():
                written.append(f"{{{json.dumps(element.name_key)}:{json.dumps(tool)}")
            case PythonArguments():
                written.append("(")
        if isinstance(element, BODIES):
            break
    return "".join(written)


def marker_texts(part: CallsPart) -> list[str]:
    """The texts that begin calls wherever they stand. A word of a language (`functools`) does so only together with
    what follows it."""
    elements = (*part.opening, *part.call)
    texts = []
    for marker in part.markers:
        text = marker
        if marker.isalpha():
            at = next(i for i, one in enumerate(elements) if isinstance(one, Literal) and marker in one.spellings)
            following = [element for element in elements[at + 1 :] if not isinstance(element, Space)]
            if following and isinstance(following[0], Literal):
                text += following[0].text
        texts.append(text)
    return texts


def _split_lead(elements: tuple[Element, ...]) -> tuple[tuple[Element, ...], tuple[Element, ...]]:
    """The elements up to the first text that must be there, and the rest."""
    for at, element in enumerate(elements):
        if isinstance(element, Literal):
            if not element.optional:
                return elements[: at + 1], elements[at + 1 :]
        elif not isinstance(element, Space):
            return elements[:at], elements[at:]
    return elements, ()


def _split_call(elements: tuple[Element, ...]) -> _CallElements:
    for at, element in enumerate(elements):
        if isinstance(element, CallName | JsonEnvelope):
            return _CallElements(elements[:at], elements[at:])
    raise ValueError("a call without a name")


class _CallsWriter:
    def __init__(self, rules: LarkRules, markers: MarkerTokens) -> None:
        self._rules, self._markers = rules, markers

    def any_spelling(self, elements: Sequence[Element]) -> str:
        return sequence(
            *(
                SPACE if isinstance(element, Space) else self._literal(element, element.spellings)
                for element in elements
                if isinstance(element, Space | Literal)
            )
        )

    def all(self, elements: Sequence[Element]) -> str:
        """Elements that are the same for all tools."""
        return sequence(
            *(
                SPACE if isinstance(element, Space) else self._literal(element, (element.text,))
                for element in elements
                if isinstance(element, Space | Literal)
            )
        )

    def of_tool(self, elements: Sequence[Element], tool: ToolGrammar) -> str:
        return self._rules.rule(sequence(*(self._of_tool(element, tool) for element in elements)))

    def _literal(self, element: Literal, spellings: Sequence[str]) -> str:
        written = either(filter(None, map(self._markers.lark, spellings)))
        return f"({written})?" if element.optional and written else written

    def _of_tool(self, element: Element, tool: ToolGrammar) -> str:
        match element:
            case Space() | Literal():
                return self.all((element,))
            case CallName():
                name = quoted(element.prefix + tool.name)
                return sequence(name, quoted(":"), self._rules.terminal(CALL_NUMBER)) if element.numbered else name
            case CallId():
                return f"({self._markers.lark(element.lead)} {self._rules.terminal(CALL_ID)})?"
            case JsonArguments():
                return self._json(tool)
            case JsonEnvelope():
                return self._envelope(element, tool)
            case TaggedArguments():
                return tagged_arguments(self._rules, self._markers, element, tool)
            case PythonArguments():
                return python_arguments(self._rules, tool)
            case GemmaArguments():
                return gemma_arguments(self._rules, self._markers, element, tool)

    def _json(self, tool: ToolGrammar) -> str:
        return self._rules.json(tool.rewritten, tool.definitions)

    def _envelope(self, form: JsonEnvelope, tool: ToolGrammar) -> str:
        colon = f"{SPACE} {quoted(':')} {SPACE}"

        def key(text: str) -> str:
            return quoted(json.dumps(text, ensure_ascii=False))

        return sequence(
            f"{quoted('{')} {SPACE} {key(form.name_key)} {colon} {key(tool.name)}",
            f"{SPACE} {quoted(',')} {SPACE} {key(form.arguments_keys[0])} {colon} {self._json(tool)}",
            f"{SPACE} {quoted('}')}",
        )
