"""Arguments with tags of their own. Strings stand as they are, other values are JSON; which is which, the parser
decides by the same types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipstream.router.parsers.description.elements import Literal, StringFlag, TaggedArguments
from slipstream.router.parsers.grammar.lark_rules import SPACE, LarkRules, either, escaped, name_beside, sequence
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens, quoted
from slipstream.router.parsers.grammar.schema_parts import (
    UNIONS,
    ObjectParts,
    is_anything,
    object_options,
    resolved,
    used,
    without_text,
)
from slipstream.router.parsers.grammar.text_values import FREE, text_options
from slipstream.router.parsers.grammar.tool_grammar import ToolGrammar
from slipstream.router.parsers.readers.schema_types import TEXT, TEXT_OR_NULL, schema_types, types_of
from slipstream.router.parsers.readers.tagged_arguments import MAX_KEY

FREE_KEY = r"/[A-Za-z0-9_.\-]{1,64}/"
NO_JSON = r"/[^ \t\r\n\"\[{0-9tfn\-](?s:.*)/"  # a text that is surely not taken for a JSON value


def tagged_arguments(rules: LarkRules, markers: MarkerTokens, form: TaggedArguments, tool: ToolGrammar) -> str:
    """Required arguments, and optional ones that may be left out, in the order of the schema."""
    return _TaggedWriter(rules, markers, form, tool).arguments()


class _TaggedWriter:
    def __init__(self, rules: LarkRules, markers: MarkerTokens, form: TaggedArguments, tool: ToolGrammar) -> None:
        self._rules, self._markers, self._form, self._tool = rules, markers, form, tool
        self._avoiding: dict[str, Any] = {}  # definitions whose texts do not end a value

    def arguments(self) -> str:
        options = object_options(self._tool.rewritten, self._tool.definitions)
        if options is None:  # a combination of schemas
            return f"{SPACE} {self._free(True, ())}*"
        return either(self._object(parts) for parts in options)

    def _object(self, parts: ObjectParts) -> str:
        written = [SPACE]
        for name, schema in parts.properties.items():
            if schema is not False and can_be_key(self._form, name):
                one = self._argument(quoted(name), schema, types_of(self._tool.given, name))
                written.append(one if name in parts.required else f"{one}?")
        if parts.others is not None:
            written.append(f"({self._free(parts.others, parts.properties)}){parts.repeats_of_others}")
        return self._rules.rule(sequence(*written))

    def _free(self, schema: Any, named: Iterable[str]) -> str:
        """An argument that the schema does not name. Its name is none of `named`, of which there are rules."""
        key = self._rules.terminal(name_beside(FREE_KEY, named))
        given = self._tool.given
        return self._argument(key, schema, frozenset(schema_types(given.get("additionalProperties"), given)))

    def _argument(self, key: str, schema: Any, types: frozenset[str]) -> str:
        has_flag = any(isinstance(element, StringFlag) for element in self._form.after_key)
        if has_flag:
            options = self._flagged(key, schema)
        elif types in (TEXT, TEXT_OR_NULL) or is_anything(schema):
            options = [self._behind(key, "", text) for text in self._texts(schema)]
        elif not types and _is_string(schema):
            options = [self._behind(key, "", self._text(NO_JSON))]
        else:
            options = [self._behind(key, "", self._json(schema))]
        return self._rules.rule(either(options))

    def _flagged(self, key: str, schema: Any) -> list[str]:
        flag = next(element for element in self._form.after_key if isinstance(element, StringFlag))
        options = []
        if is_anything(schema) or _may_be_string(schema, self._tool.definitions):
            options += [self._behind(key, flag.true, text) for text in self._texts(schema, null=None)]
        if not _is_string(schema):
            options.append(self._behind(key, flag.false, self._json(schema)))
        return options

    def _behind(self, key: str, flag: str, value: str) -> str:
        form = self._form
        lead = [self._markers.lark(form.before_key), key]
        for element in form.after_key:
            if isinstance(element, Literal):
                lead.append(self._markers.lark(element.text))
            else:
                lead.append(quoted(flag) if isinstance(element, StringFlag) else SPACE)
        return sequence(*lead, value, SPACE)

    def _json(self, schema: Any) -> str:
        definitions = used(schema, self._tool.definitions)
        close = self._form.after_value
        for name in definitions:
            if name not in self._avoiding:
                self._avoiding[name] = without_text(definitions[name], close)
        avoiding = {name: self._avoiding[name] for name in definitions}
        value = self._rules.json({} if schema is True else without_text(schema, close), avoiding)
        return sequence(SPACE, value, SPACE, self._markers.lark(close))

    def _texts(self, schema: Any, null: str | None = "null") -> list[str]:
        options = text_options(schema, self._tool.definitions, null=null)
        return [self._text(option) for option in (options if options is not None else [FREE])]

    def _text(self, expression: str) -> str:
        """A text up to the end of the value, which it does not contain."""
        close = self._form.after_value
        line = r"\n" if self._form.value_on_lines and expression is not FREE else ""
        body = expression if expression is FREE else f"({expression})"
        inner = f"{body} & ~/(?s:.*){escaped(close)}(?s:.*)/"
        if self._markers.is_token(close):
            text = self._rules.terminal(f"/{line}/ ({inner}) /{line}/" if line else f"({inner})")
            return sequence(text, self._markers.lark(close))
        if expression is FREE:
            return self._rules.lazy(f"/(?s:.*){escaped(close)}/")
        return self._rules.lazy(f"{f'/{line}/ ' if line else ''}({inner}) /{line}{escaped(close)}/")


def can_be_key(form: TaggedArguments, name: str) -> bool:
    """Whether a property's name can stand between its tags, which know no escapes. If not, it is left out."""
    end, *_ = form.after_key
    has_end = isinstance(end, Literal) and any(text in name for text in end.spellings)
    return not has_end and "\n" not in name and name == name.strip() and len(name) <= MAX_KEY


def _may_be_string(schema: Any, definitions: dict[str, Any]) -> bool:
    """Whether strings are among the values."""
    seen: dict[int, Any] = {}
    left = [schema]
    while left:
        part = resolved(left.pop(), definitions)
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen[id(part)] = part
        choices = [choice for key in UNIONS for choice in part.get(key, ())]
        left += choices
        if choices:
            continue
        types = part.get("type", ())
        if "enum" in part:
            may_be = any(isinstance(value, str) for value in part["enum"])
        else:
            may_be = "string" in types if isinstance(types, list) else types == "string"
        if may_be or isinstance(part.get("const"), str):
            return True
    return False


def _is_string(schema: Any) -> bool:
    """Whether all values are strings."""
    if not isinstance(schema, dict):
        return False
    if "enum" in schema:
        return all(isinstance(value, str) for value in schema["enum"])
    return schema.get("type") == "string" or isinstance(schema.get("const"), str)
