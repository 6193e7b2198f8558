"""Arguments in Gemma's dialect: `{key:VALUE,...}` with bare keys, and strings between two quote markers, without
escapes."""

from __future__ import annotations

import json
from typing import Any

from slipstream.router.parsers.description.elements import GemmaArguments
from slipstream.router.parsers.grammar.lark_rules import SPACE, LarkRules, either, escaped, name_beside, sequence
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens, quoted
from slipstream.router.parsers.grammar.python_arguments import listed
from slipstream.router.parsers.grammar.schema_parts import (
    REFERENCE,
    ObjectParts,
    is_anything,
    merged,
    object_options,
    resolved,
    used,
)
from slipstream.router.parsers.grammar.text_values import FREE, text_options
from slipstream.router.parsers.grammar.tool_grammar import ToolGrammar

BARE_KEY = r"/[A-Za-z0-9_.\-]{1,64}/"
NOT_BARE = frozenset(':,{}[]"')
WORDS = {"boolean": ["true", "false"], "null": ["null"]}
ANY_TYPES = ["null", "boolean", "number", "string", "array", "object"]


def gemma_arguments(rules: LarkRules, markers: MarkerTokens, form: GemmaArguments, tool: ToolGrammar) -> str:
    """With the braces."""
    writer = _GemmaWriter(rules, markers, form, tool)
    return writer.objects(tool.rewritten)


class _GemmaWriter:
    def __init__(self, rules: LarkRules, markers: MarkerTokens, form: GemmaArguments, tool: ToolGrammar) -> None:
        self._rules, self._markers, self._form = rules, markers, form
        self._definitions = tool.definitions

    def objects(self, schema: Any) -> str:
        options = object_options(schema, self._definitions) or [ObjectParts({}, frozenset(), True)]
        return either(self._object(parts) for parts in options)

    def _object(self, parts: ObjectParts) -> str:
        """Without properties whose names cannot stand in quotes."""
        named = {
            name: schema
            for name, schema in parts.properties.items()
            if schema is not False and self._form.quote not in name
        }
        free = name_beside(BARE_KEY, parts.properties)
        written = listed(
            self._rules, parts._replace(properties=named), lambda name, schema: self._property(name, schema, free)
        )
        return sequence(quoted("{"), SPACE, written, SPACE, quoted("}"))

    def _property(self, name: str | None, schema: Any, free_key: str) -> str:
        key = self._rules.terminal(free_key) if name is None else self._key(name)
        return self._rules.rule(sequence(key, SPACE, quoted(":"), SPACE, self._value(schema)))

    @property
    def _quote(self) -> str:
        return self._markers.lark(self._form.quote)

    def _value(self, schema: Any) -> str:
        """The name of a rule for a value. A definition has one rule, which may refer to itself."""
        if is_anything(schema):
            return self._rules.recursive("anything", lambda: either(self._of_types(ANY_TYPES, {})))
        if isinstance(schema, dict) and schema.keys() == {"$ref"}:
            name = schema["$ref"].removeprefix(REFERENCE)
            target = self._definitions.get(name, True)
            return self._rules.recursive(json.dumps([name, target]), lambda: either(self._options(target)))
        return self._rules.rule(either(self._options(schema)))

    def _options(self, schema: Any) -> list[str]:
        schema = merged(resolved(schema, self._definitions), self._definitions)
        if schema is None:
            return [self._value(True)]
        if "enum" in schema or "const" in schema:
            return [self._exact(value) for value in schema.get("enum", [schema.get("const")])]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return [self._value(option) for option in schema[key] if option is not False]
        types = schema.get("type", ANY_TYPES)
        return self._of_types(types if isinstance(types, list) else [types], schema)

    def _of_types(self, types: list[str], schema: dict[str, Any]) -> list[str]:
        options: list[str] = []
        for name in types:
            match name:
                case "null" | "boolean":
                    options += map(quoted, WORDS[name])
                case "number" | "integer":
                    options.append(self._rules.json({**schema, "type": name}, used(schema, self._definitions)))
                case "string":
                    options += self._strings(schema)
                case "array":
                    options.append(self._array(schema))
                case "object":
                    options.append(self.objects({**schema, "type": name}))
        return options

    def _strings(self, schema: dict[str, Any]) -> list[str]:
        written = []
        for option in text_options({**schema, "type": "string"}, self._definitions, null=None) or [FREE]:
            inner = f"({option}) & ~/(?s:.*){escaped(self._form.quote)}(?s:.*)/"
            text = self._rules.terminal(f"({inner})")
            if self._markers.is_token(self._form.quote):
                written.append(sequence(self._quote, text, self._quote))
            else:
                closed = self._rules.lazy(f"({inner}) /{escaped(self._form.quote)}/")
                written.append(sequence(self._quote, closed))
        return written

    def _array(self, schema: dict[str, Any]) -> str:
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        comma = f"{SPACE} {quoted(',')} {SPACE}"
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        num_first = len(first) if most is None else min(len(first), most)
        items = ""  # behind the first ones
        if rest is not False and (most is None or most > num_first):
            one = self._value(rest)
            rest_of = f"({comma} {one})"
            if num_first:
                items = repeated(rest_of, least - num_first, None if most is None else most - num_first)
            else:
                items = f"{one} {repeated(rest_of, least - 1, None if most is None else most - 1)}"
                items = items if least else f"({items})?"
        for number in reversed(range(num_first)):
            items = sequence(comma if number else "", self._value(first[number]), items)
            items = items if number < least else f"({items})?"
        return sequence(quoted("["), SPACE, items, SPACE, quoted("]"))

    def _exact(self, value: Any) -> str:
        if isinstance(value, str):
            return sequence(self._quote, quoted(value) if value else "", self._quote)
        if isinstance(value, list):
            commas = f" {quoted(',')} ".join(self._exact(item) for item in value)
            return sequence(quoted("["), commas, quoted("]"))
        if isinstance(value, dict):
            pairs = [f"{self._key(name)} {quoted(':')} {self._exact(inner)}" for name, inner in value.items()]
            return sequence(quoted("{"), f" {quoted(',')} ".join(pairs), quoted("}"))
        return quoted(json.dumps(value))

    def _key(self, name: str) -> str:
        is_bare = bool(name) and NOT_BARE.isdisjoint(name) and name == name.strip()
        return quoted(name) if is_bare else sequence(self._quote, quoted(name) if name else "", self._quote)


def repeated(expression: str, least: int, most: int | None) -> str:
    if most is None and least <= 0:
        return f"{expression}*"
    return f"{expression}{{{max(least, 0)},{'' if most is None else max(most, 0)}}}"
