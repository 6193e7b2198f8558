"""Arguments as Python writes them, `(key=VALUE, key=VALUE)`: True, False and None as values of their own, all others as
JSON, whose strings, numbers and lists are Python's too. The parser also reads JSON's own words within them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from slipstream.router.parsers.grammar.lark_rules import SPACE, LarkRules, either, name_beside, sequence
from slipstream.router.parsers.grammar.marker_tokens import quoted
from slipstream.router.parsers.grammar.schema_parts import ObjectParts, object_options, used
from slipstream.router.parsers.grammar.tool_grammar import ANY_OBJECT, ToolGrammar
from slipstream.router.parsers.readers.python_arguments import can_be_keyword

WORDS = {"boolean": ["True", "False"], "null": ["None"]}
SINGLE_QUOTED = r"""/'([^'\\\n\r]|\\[nrt'"\\])*'/"""  # also written by models, for texts that nothing is asked of
FREE_KEY = r"/[A-Za-z_][A-Za-z0-9_]{0,63}/"


def python_arguments(rules: LarkRules, tool: ToolGrammar) -> str:
    """With the parentheses."""
    options = object_options(tool.rewritten, tool.definitions) or [ObjectParts({}, frozenset(), True)]
    written = either(_PythonWriter(rules, tool).arguments(parts) for parts in options)
    return sequence(quoted("("), SPACE, written, SPACE, quoted(")"))


def listed(rules: LarkRules, parts: ObjectParts, argument: Callable[[str | None, Any], str]) -> str:
    """Properties in their order, with commas between those that are there; empty if there can be none. `argument`
    writes one with its key; None: any key."""
    comma = f"{SPACE} {quoted(',')} {SPACE}"
    # From the last one on: what may follow if nothing was written before, and if something was. None: only nothing.
    first: str | None = None
    more: str | None = None
    is_needed = False  # one of those that follow is required
    if parts.others is not None:
        other = argument(None, parts.others)
        least, most = parts.least_others, parts.most_others
        more = rules.rule(f"({comma} {other}){{{least},{most}}}")
        first = rules.rule(f"{other} ({comma} {other}){{{max(least - 1, 0)},{max(most - 1, 0)}}}") if most else None
        is_needed = least > 0
    for name in reversed(parts.properties):
        one = argument(name, parts.properties[name])
        rest = more or ""
        if name in parts.required:
            first = rules.rule(sequence(one, rest))
            more = rules.rule(sequence(comma, one, rest))
            is_needed = True
        else:
            here = sequence(one, rest)
            first = rules.rule(here if first is None else either([here, first]))
            more = rules.rule(sequence(f"({comma} {one})?", rest))
    if first is None:
        return ""
    return first if is_needed else f"{first}?"


class _PythonWriter:
    def __init__(self, rules: LarkRules, tool: ToolGrammar) -> None:
        self._rules, self._tool = rules, tool

    def arguments(self, parts: ObjectParts) -> str:
        """Without properties whose names cannot be keywords."""
        named = {
            name: schema for name, schema in parts.properties.items() if schema is not False and can_be_keyword(name)
        }
        free = name_beside(FREE_KEY, parts.properties)
        return self._rules.rule(
            listed(
                self._rules, parts._replace(properties=named), lambda name, schema: self._argument(name, schema, free)
            )
        )

    def _argument(self, name: str | None, schema: Any, free_key: str) -> str:
        key = self._rules.terminal(free_key) if name is None else quoted(name)
        return self._rules.rule(sequence(key, SPACE, quoted("="), SPACE, either(self._values(schema))))

    def _values(self, schema: Any) -> list[str]:
        if not isinstance(schema, dict) or "$ref" in schema:
            return [self._json({} if schema is True else schema)]
        if "enum" in schema or "const" in schema:
            return [self._exact(value) for value in schema.get("enum", [schema.get("const")])]
        for key in ("anyOf", "oneOf"):
            if schema.keys() == {key}:
                return [value for option in schema[key] if option is not False for value in self._values(option)]
        types = schema.get("type", [])
        types = types if isinstance(types, list) else [types]
        words = [quoted(word) for name in types for word in WORDS.get(name, ())]
        left = [name for name in types if name not in WORDS]
        values = [self._json({**schema, "type": left})] if words and left else [] if words else [self._json(schema)]
        if "string" in types and schema.keys() <= {"type"}:
            values.append(self._rules.terminal(SINGLE_QUOTED))
        return [*words, *values]

    def _exact(self, value: Any) -> str:
        if value is None or isinstance(value, bool):
            return quoted(str(value))
        return quoted(json.dumps(value, ensure_ascii=False)) if isinstance(value, str) else self._json({"const": value})

    def _json(self, schema: dict[str, Any]) -> str:
        if not schema:
            anything: dict[str, Any] = json.loads(ANY_OBJECT)
            return self._rules.json(anything["additionalProperties"], anything["$defs"])
        return self._rules.json(schema, used(schema, self._tool.definitions))
