"""Arguments in Gemma's dialect: `{key:VALUE,...}` with bare keys, and strings between two quote markers, without
escapes."""

from __future__ import annotations

import json
from typing import Any

from slipstream.router.parsers.description.elements import GemmaArguments
from slipstream.router.parsers.grammar.lark_rules import SPACE, LarkRules, either, escaped, sequence
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens, quoted
from slipstream.router.parsers.grammar.python_arguments import listed
from slipstream.router.parsers.grammar.schema_parts import (
    REFERENCE,
    ObjectParts,
    is_anything,
    object_parts,
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
    parts = object_parts(tool.rewritten, tool.definitions) or ObjectParts({}, frozenset(), True)
    return writer.object(parts)


class _GemmaWriter:
    def __init__(self, rules: LarkRules, markers: MarkerTokens, form: GemmaArguments, tool: ToolGrammar) -> None:
        self._rules, self._markers, self._form = rules, markers, form
        self._definitions = tool.definitions

    def object(self, parts: ObjectParts) -> str:
        return sequence(quoted("{"), SPACE, listed(self._rules, parts, self._property), SPACE, quoted("}"))

    def _property(self, name: str | None, schema: Any) -> str:
        key = self._rules.terminal(BARE_KEY) if name is None else self._key(name)
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
        schema = resolved(schema, self._definitions)
        if not isinstance(schema, dict) or "allOf" in schema:
            return [self._value(True)]
        if "enum" in schema or "const" in schema:
            return [self._exact(value) for value in schema.get("enum", [schema.get("const")])]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return [self._value(option) for option in schema[key]]
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
                    parts = object_parts({**schema, "type": name}, self._definitions)
                    options.append(self.object(parts or ObjectParts({}, frozenset(), True)))
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
        item = self._value(schema.get("items", True))
        comma = f"{SPACE} {quoted(',')} {SPACE}"
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            items = ""
        else:
            rest = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
            items = f"{item} ({comma} {item}){rest if rest != '{0,}' else '*'}"
            items = items if least else f"({items})?"
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
