"""Which names an object may have that is put together from several schemas (`allOf`, `$ref`, `anyOf`, ...).

An object with `properties` and without `additionalProperties` is closed: it has no names but these. A schema that is
only a part of another cannot be closed by itself, or its names would be refused to the other parts, so the whole is:
once, or in each branch of an `anyOf` or `oneOf` whose branches bring names of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from slipstream.router.structured_output.json_schema.errors import child

BRANCHES = ("anyOf", "oneOf")
Resolve = Callable[..., tuple[Any, str]]


@dataclass(slots=True)
class Names:
    """The names of properties in a schema and its parts, and how many parts define each."""

    counts: Counter[str] = field(default_factory=Counter)
    has_properties: bool = False
    is_declared: bool = False  # some part says itself what other names there may be
    has_patterns: bool = False

    def add(self, other: Names) -> None:
        self.counts += other.counts
        self.note(other)

    def add_alternatives(self, others: list[Names]) -> None:
        for name in dict.fromkeys(name for other in others for name in other.counts):
            self.counts[name] += max(other.counts[name] for other in others)
        for other in others:
            self.note(other)

    def note(self, other: Names) -> None:
        self.has_properties |= other.has_properties
        self.has_patterns |= other.has_patterns


def names_of(
    schema: Any, pointer: str, resolve: Resolve, seen: set[str] | None = None, *, branches: bool = True
) -> Names:
    """The names in a schema; without `branches`, those that do not depend on which branch of it is taken."""
    names = Names()
    if not isinstance(schema, dict):
        return names
    seen = set() if seen is None else seen
    properties = schema.get("properties")
    if isinstance(properties, dict):
        names.counts.update(properties.keys())
        names.has_properties = True
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in names.counts:
            names.counts[name] = 1
    names.is_declared = "additionalProperties" in schema
    names.has_patterns = bool(schema.get("patternProperties"))
    for key in ("$ref", "$dynamicRef"):
        if key in schema:
            target, where = resolve(schema[key], pointer, key)
            if where not in seen:
                _add_part(names, names_of(target, where, resolve, seen | {where}))
    for number, part in enumerate(_list(schema, "allOf")):
        _add_part(names, names_of(part, child(pointer, "allOf", number), resolve, seen))
    dependent = schema.get("dependentSchemas", schema.get("dependencies"))
    for name, part in dependent.items() if isinstance(dependent, dict) else ():
        names.add(names_of(part, child(pointer, "dependentSchemas", name), resolve, seen))
    conditional = [
        names_of(schema.get(key), child(pointer, key), resolve, seen) for key in ("then", "else") if key in schema
    ]
    if "if" in schema:
        condition = names_of(schema["if"], child(pointer, "if"), resolve, seen)
        names.counts += condition.counts
        names.add_alternatives(conditional)
    if branches:
        for key in BRANCHES:
            names.add_alternatives(branch_names(schema, key, pointer, resolve, seen))
    return names


def branch_names(
    schema: dict[str, Any], key: str, pointer: str, resolve: Resolve, seen: set[str] | None = None
) -> list[Names]:
    return [
        names_of(part, child(pointer, key, number), resolve, seen) for number, part in enumerate(_list(schema, key))
    ]


def closed(names: Iterable[str], others: Any = False) -> dict[str, Any]:
    """A schema that allows no other names."""
    return {"properties": dict.fromkeys(names, True), "additionalProperties": others}


def _add_part(names: Names, part: Names) -> None:
    names.add(part)
    names.is_declared |= part.is_declared


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
