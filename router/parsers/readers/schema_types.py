"""The types that a JSON schema allows for an argument, and the JSON of a value that was written without quotes."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from slipstream.router.parsers.readers.json_values import json_of

TEXT = frozenset({"string"})
TEXT_OR_NULL = frozenset({"string", "null"})
MAX_PARTS = 1000  # of a schema

NO_JSON = (ValueError, TypeError, RecursionError, MemoryError, SyntaxError)


def types_of(parameters: Any, key: str) -> frozenset[str]:
    """The types of one property of a function's parameters; empty if they are unknown. A property that they do not name
    has the type of `additionalProperties`."""
    found: set[str] = set()
    is_named = False
    for schema in parts_of(parameters, parameters):
        properties = schema.get("properties")
        if isinstance(properties, dict) and key in properties:
            is_named = True
            found |= schema_types(properties[key], parameters)
    if not is_named and isinstance(parameters, dict):
        found = schema_types(parameters.get("additionalProperties"), parameters)
    return frozenset(found)


def parts_of(
    schema: Any, root: Any, is_whole: Callable[[Mapping[str, Any]], bool] | None = None
) -> Iterator[dict[str, Any]]:
    """A schema, what it refers to and what it is a union of, each once: a client's schema may name one a thousand
    times. One that `is_whole` is not looked into."""
    seen = set[int]()
    left = [schema]
    while left and len(seen) < MAX_PARTS:
        part = left.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if is_whole is not None and is_whole(part):
            continue
        if isinstance(part.get("$ref"), str):
            left.append(referred(part["$ref"], root))
        for union in ("anyOf", "oneOf", "allOf"):
            choices = part.get(union)
            left += choices if isinstance(choices, list) else ()


def schema_types(schema: Any, root: Any) -> set[str]:
    found: set[str] = set()
    for part in parts_of(schema, root, has_type):
        declared = part.get("type")
        if isinstance(declared, str):
            found |= {declared, "null"} if part.get("nullable") is True else {declared}
        elif isinstance(declared, list):
            found |= {name for name in declared if isinstance(name, str)}
        elif isinstance(part.get("enum"), list):
            found |= {type_name(value) for value in part["enum"]}
        elif "const" in part:
            found.add(type_name(part["const"]))
    return found


def has_type(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("type"), str | list)


def referred(reference: str, root: Any) -> Any:
    """What a reference within the schema (`#/$defs/Name`) leads to; None if that is nothing."""
    found = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def type_name(value: Any) -> str:
    if value is None:
        return "null"
    names: Iterable[tuple[type, str]] = (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def json_value(text: str, types: frozenset[str]) -> str:
    """The JSON of a value as a model wrote it between tags: JSON if it is, and the types allow it; else Python's
    `True`, `None` and quotes; else a string."""
    stripped = text.strip()
    try:
        kind = type_name(json.loads(stripped, parse_constant=refuse))
        is_allowed = kind in types or (kind == "integer" and "number" in types)
        if is_allowed or (kind != "string" if not types else "string" not in types):
            return stripped
    except NO_JSON:
        if types and "string" not in types:
            try:
                return json_of(python_value(stripped))
            except NO_JSON:
                pass
    return json_of(text)


def python_value(text: str) -> Any:
    """The value of a literal of Python. Raises one of NO_JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the escapes in it
        return ast.literal_eval(text)


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
