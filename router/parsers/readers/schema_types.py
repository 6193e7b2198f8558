"""The types that a JSON schema allows for an argument, and the JSON of a value that was written without quotes."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterable
from typing import Any

from slipstream.router.parsers.readers.json_values import json_of

TEXT = frozenset({"string"})
TEXT_OR_NULL = frozenset({"string", "null"})

NO_JSON = (ValueError, TypeError, RecursionError, MemoryError, SyntaxError)


def types_of(parameters: Any, key: str) -> frozenset[str]:
    """The types of one property of a function's parameters; empty if they are unknown."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    schema = properties.get(key) if isinstance(properties, dict) else None
    return frozenset(schema_types(schema, parameters))


def schema_types(schema: Any, root: Any) -> set[str]:
    """Each reference is followed once, so that the time is linear in the size of `root`."""
    found: set[str] = set()
    followed: set[str] = set()
    left = [schema]
    while left:
        one = left.pop()
        if not isinstance(one, dict):
            continue
        declared = one.get("type")
        if isinstance(declared, str):
            found |= {declared, "null"} if one.get("nullable") is True else {declared}
            continue
        if isinstance(declared, list):
            found |= {name for name in declared if isinstance(name, str)}
            continue
        if isinstance(one.get("enum"), list):
            found |= {type_name(value) for value in one["enum"]}
        elif "const" in one:
            found.add(type_name(one["const"]))
        reference = one.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            left.append(referred(reference, root))
        for union in ("anyOf", "oneOf", "allOf"):
            choices = one.get(union)
            left += choices if isinstance(choices, list) else ()
    return found


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
