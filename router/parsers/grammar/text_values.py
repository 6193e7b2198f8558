"""Strings that stand without quotes and escapes, as the expressions of Lark that a JSON schema allows."""

from __future__ import annotations

from typing import Any

from slipstream.router.parsers.grammar.lark_rules import escaped
from slipstream.router.parsers.grammar.schema_parts import is_anything, resolved

FREE = r"/(?s:.*)/"
NOTHING = r"/(?s:.){0}/"
MAX_DEPTH = 8
MAX_LENGTH = 256 << 10  # characters of all expressions of one value
# Formats that llguidance knows for JSON strings only.
FORMATS = {
    "email": r"/[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(\.[A-Za-z0-9\-]{1,63}){1,4}/",
    "ipv4": r"/((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])/",
    "uri": r"/[a-z][a-z0-9+.\-]*:[^ \t\r\n<>]+/",
}


def text_options(schema: Any, definitions: dict[str, Any], *, null: str | None = "null") -> list[str] | None:
    """The strings that fit a schema, as expressions any of which they match. None: all do, or it cannot be said.
    `null` is how a null is written, None: not as a text."""
    return _Options(definitions, null).of(schema, MAX_DEPTH)


class _Options:
    """Remembers what it has found: a client's schema may name a part a thousand times."""

    def __init__(self, definitions: dict[str, Any], null: str | None) -> None:
        self._definitions = definitions
        self._null = null
        self._known: dict[tuple[int, int], tuple[Any, list[str] | None]] = {}  # with the schema, so that its id stays

    def of(self, schema: Any, depth: int) -> list[str] | None:
        key = id(schema), depth
        if key not in self._known:
            found = None if depth == 0 else self._of(schema, depth)
            if found is not None and sum(map(len, found)) > MAX_LENGTH:
                found = None
            self._known[key] = schema, found
        return self._known[key][1]

    def _of(self, schema: Any, depth: int) -> list[str] | None:
        schema = resolved(schema, self._definitions)
        if is_anything(schema) or not isinstance(schema, dict):
            return None
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return [f"/{escaped(value)}/" if value else NOTHING for value in values if isinstance(value, str)] or None
        for key in ("anyOf", "oneOf"):
            if key in schema:
                options = [self.of(inner, depth - 1) for inner in schema[key]]
                if None in options:
                    return None
                return list(dict.fromkeys(text for option in options if option for text in option))
        parts = _parts(schema)
        for inner in schema.get("allOf", ()):
            options_of_part = self.of(inner, depth - 1)
            if options_of_part is not None:
                parts.append(f"({' | '.join(options_of_part)})")
        types = schema.get("type", "string")
        types = types if isinstance(types, list) else [types]
        nulls = [f"/{self._null}/"] if "null" in types and self._null is not None else []
        if "string" not in types:
            return nulls
        return [" & ".join(dict.fromkeys(parts)), *nulls] if parts else None


def _parts(schema: dict[str, Any]) -> list[str]:
    """What has to hold of a string at the same time."""
    parts = []
    if "pattern" in schema:
        parts.append(f"/{_in_slashes(schema['pattern'])}/")
    if schema.get("format") in FORMATS:
        parts.append(FORMATS[schema["format"]])
    if "minLength" in schema or "maxLength" in schema:
        parts.append(rf"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/")
    return parts


def _in_slashes(pattern: str) -> str:
    """A pattern of whole texts as the trial writes it, `^(?:...)$`, for an expression that always matches as a
    whole."""
    inner = pattern.removeprefix("^").removesuffix("$")
    out, is_escape = [], False
    for character in inner:
        out.append("\\/" if character == "/" and not is_escape else {"\n": r"\n"}.get(character, character))
        is_escape = character == "\\" and not is_escape
    return "".join(out)
