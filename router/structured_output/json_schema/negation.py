"""The negation of a schema, as another schema: for `not`, and for what follows where an `if` does not hold.

    not {"required": ["a"]}   becomes   {"type": [all but object]} or {"properties": {"a": false}}

Each keyword of the schema gives one alternative. An alternative that cannot be written down is left out: then fewer
values are allowed than could be, and never one that the client has ruled out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from slipstream.router.structured_output.json_schema.errors import SchemaError, child
from slipstream.router.structured_output.json_schema.keywords import ANNOTATIONS, TYPES

MAX_DEPTH = 12
# keyword -> type that it is about, opposite keyword, what is added to the value
FLIPPED = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
Resolve = Callable[[Any, str], tuple[Any, str]]  # from a reference and where it stands to its target and where that is


def negated(schema: Any, pointer: str, resolve: Resolve, depth: int = 0) -> Any:
    """A schema that no value of this one fits, and all others if they can be written down. Raises SchemaError if
    nothing can."""
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict):
        raise SchemaError(pointer, "a schema is an object or a boolean")
    if depth > MAX_DEPTH:
        raise SchemaError(pointer, "it is nested too deeply to be negated")
    keys = [key for key in schema if key in KNOWN or key in UNKNOWN]
    options: list[Any] = []
    error: SchemaError | None = None
    for key in keys:
        try:
            options += (option for option in _options(schema, key, pointer, resolve, depth) if option is not False)
        except SchemaError as reason:
            error = error or reason
    if options:
        return options[0] if len(options) == 1 else {"anyOf": options}
    if error is not None:
        raise error
    if keys and not any(key in EXACT for key in keys):
        raise SchemaError(child(pointer, keys[0]), f"the negation of {keys[0]!r} is not served")
    return False


def _options(schema: dict[str, Any], key: str, pointer: str, resolve: Resolve, depth: int) -> list[Any]:
    value, at = schema[key], child(pointer, key)
    if key in LISTS and not isinstance(value, list):
        raise SchemaError(at, "it is not a list")

    def opposite(inner: Any, *keys: str | int) -> Any:
        return negated(inner, child(at, *keys), resolve, depth + 1)

    match key:
        case "type":
            return [{"type": others}] if (others := _other_types(value)) else []
        case "const":
            return _unlike([value])
        case "enum":
            return _unlike(value)
        case "pattern":
            return [{"type": "string", "pattern": rf"^(?![\s\S]*(?:{value}))"}]
        case "required":
            return [{"type": "object", "properties": {name: False}} for name in value if isinstance(name, str)]
        case "properties":
            items = value.items() if isinstance(value, dict) else ()
            return [
                {"type": "object", "required": [name], "properties": {name: opposite(inner, name)}}
                for name, inner in items
                if not _always(inner)
            ]
        case "items" if not isinstance(value, list):
            return [{"type": "array", "minItems": 1, "prefixItems": [opposite(value)]}]
        case "allOf":
            return [opposite(inner, number) for number, inner in enumerate(value)]
        case "anyOf" | "oneOf":
            return [{"allOf": [opposite(inner, number) for number, inner in enumerate(value)]}] if value else [True]
        case "not":
            return [value]
        case "$ref":
            target, where = resolve(value, pointer)
            return [negated(target, where, resolve, depth + 1)]
        case _ if key in FLIPPED and isinstance(value, int | float) and not isinstance(value, bool):
            kind, other, more = FLIPPED[key]
            return [] if more and value + more < 0 else [{"type": kind, other: value + more}]
        case _:
            return []


def _always(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and all(key in ANNOTATIONS for key in schema))


def _other_types(value: Any) -> list[str]:
    named = {name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)}
    if "integer" in named:  # numbers that are not integers cannot be described
        named.add("number")
    return [name for name in TYPES if name not in named and name != "integer"]


def _unlike(values: list[Any]) -> list[Any]:
    """Everything but these values."""
    types = {"null", "boolean", "number", "string", "array", "object"}
    options: list[Any] = []
    if any(value is None for value in values):
        types.discard("null")
    booleans = {value for value in values if isinstance(value, bool)}
    if booleans:
        types.discard("boolean")
        options += [{"type": "boolean", "const": value} for value in (False, True) if value not in booleans]
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        types.discard("string")
        options.append({"type": "string", "pattern": rf"^(?!(?:{'|'.join(map(_quoted, texts))})$)"})
    numbers = sorted({value for value in values if isinstance(value, int | float) and not isinstance(value, bool)})
    if numbers:
        types.discard("number")
        options.append({"type": "number", "exclusiveMaximum": numbers[0]})
        options += [
            {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in pairwise(numbers)
        ]
        options.append({"type": "number", "exclusiveMinimum": numbers[-1]})
    for kind, name in ((list, "array"), (dict, "object")):
        if any(isinstance(value, kind) for value in values):
            types.discard(name)
    if types:
        options.append({"type": sorted(types)})
    return options


def _quoted(text: str) -> str:
    return re.sub(r"[^\w ]", lambda found: f"\\u{{{ord(found[0]):X}}}", text)


LISTS = frozenset({"enum", "required", "allOf", "anyOf", "oneOf"})
KNOWN = frozenset(FLIPPED) | {"type", "const", "enum", "pattern", "required", "properties", "items", "allOf", "anyOf"}
KNOWN |= {"oneOf", "not", "$ref"}
EXACT = frozenset({"type", "const", "enum", "allOf", "anyOf", "oneOf", "not", "$ref", "properties", "items"})
UNKNOWN = frozenset(
    {"additionalProperties", "patternProperties", "prefixItems", "multipleOf", "contains", "uniqueItems", "if"}
) | {"propertyNames", "dependentRequired", "dependentSchemas", "format", "dependencies"}
