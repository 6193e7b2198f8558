"""The keywords of arrays.

`uniqueItems` is followed where the items are one of a few values. Elsewhere it is not, because no grammar can; then the
number of items is at most that of their values, if these are known.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import orjson

from slipstream.router.structured_output.json_schema import numbers
from slipstream.router.structured_output.json_schema.errors import SchemaError, child
from slipstream.router.structured_output.json_schema.objects import ObjectPart, Rewriter

MAX_ITEMS = 10_000
MAX_ORDERED = 5  # values of which all orders are written down: 326 of 5


def rewrite_array(
    rewriter: Rewriter, schema: dict[str, Any], pointer: str, part: ObjectPart | None, out: dict[str, Any]
) -> list[Any]:
    """Adds the keywords of arrays to `out`, and returns further schemas that have to hold beside it."""
    prefix, rest = _items(schema, pointer)
    if prefix is not None:
        key, values = prefix
        out["prefixItems"] = [
            rewriter.schema(value, child(pointer, key, number), part and ObjectPart())
            for number, value in enumerate(values)
        ]
    if rest is not None:
        key, value = rest
        out["items"] = rewriter.schema(value, child(pointer, key), part and ObjectPart())
    if "minItems" in schema:
        at = child(pointer, "minItems")
        out["minItems"] = numbers.count(schema["minItems"], at)
        if out["minItems"] > MAX_ITEMS:
            raise SchemaError(at, f"{out['minItems']} items are too many: {MAX_ITEMS} are the most")
    if "maxItems" in schema:
        out["maxItems"] = min(numbers.count(schema["maxItems"], child(pointer, "maxItems")), MAX_ITEMS)
    return [*_containing(rewriter, schema, pointer, out), *_unique(rewriter, schema, pointer, out)]


def _items(schema: dict[str, Any], pointer: str) -> tuple[tuple[str, list[Any]] | None, tuple[str, Any] | None]:
    """The schemas of the first items and of all others, each with the keyword it stands in. Up to draft 2019-09 these
    were `items` and `additionalItems`."""
    items, prefix = schema.get("items"), schema.get("prefixItems")
    if isinstance(items, list):
        key = "additionalItems"
        return ("items", items), (key, schema[key]) if key in schema else None
    if prefix is not None and not isinstance(prefix, list):
        raise SchemaError(child(pointer, "prefixItems"), "it is not a list of schemas")
    key = "items" if "items" in schema else "unevaluatedItems"
    rest = (key, schema[key]) if key in schema and _judges_alone(schema, key) else None
    return None if prefix is None else ("prefixItems", prefix), rest


def _judges_alone(schema: dict[str, Any], key: str) -> bool:
    """Whether nothing beside `unevaluatedItems` evaluates items in a way that is not seen here."""
    return key == "items" or {"allOf", "anyOf", "oneOf", "$ref", "if", "contains"}.isdisjoint(schema)


def _containing(rewriter: Rewriter, schema: dict[str, Any], pointer: str, out: dict[str, Any]) -> list[Any]:
    """`contains`: the first items are those that have to be there."""
    if "contains" not in schema:
        return []
    if "maxContains" in schema:
        raise SchemaError(child(pointer, "maxContains"), "it is not served")
    count = numbers.count(schema.get("minContains", 1), child(pointer, "minContains"))
    at = child(pointer, "contains")
    if count > MAX_ITEMS:
        raise SchemaError(child(pointer, "minContains"), f"{count} items are too many: {MAX_ITEMS} are the most")
    if not count:
        return []
    if out.get("prefixItems"):
        raise SchemaError(at, "together with items at fixed places it is not served")
    contained = rewriter.schema(schema["contains"], at, ObjectPart())
    return [{"type": "array", "minItems": count, "prefixItems": [contained] * count}]


def _unique(rewriter: Rewriter, schema: dict[str, Any], pointer: str, out: dict[str, Any]) -> list[Any]:
    if schema.get("uniqueItems") is not True or "prefixItems" in out or "items" not in schema:
        return []
    values = _finite(rewriter, schema["items"], child(pointer, "items"), 0)
    if values is None:
        return []
    low, high = out.get("minItems", 0), min(out.get("maxItems", len(values)), len(values))
    if low > high:
        raise SchemaError(child(pointer, "uniqueItems"), f"there are only {len(values)} different items")
    out["maxItems"] = high
    if len(values) > MAX_ORDERED:
        return []
    orders = [list(order) for count in range(low, high + 1) for order in permutations(values, count)]
    return [{"enum": orders}]


def _finite(rewriter: Rewriter, schema: Any, pointer: str, depth: int) -> list[Any] | None:
    """The values that a schema allows; None if there are many."""
    if not isinstance(schema, dict) or depth > 8:
        return None
    if "$ref" in schema:
        target, where = rewriter.resolve(schema["$ref"], pointer)
        return _finite(rewriter, target, where, depth + 1)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None and schema.get("type") == "boolean":
        values = [False, True]
    if not isinstance(values, list) or any(isinstance(value, dict | list) for value in values):
        return None
    return [orjson.loads(text) for text in dict.fromkeys(map(orjson.dumps, values))]
