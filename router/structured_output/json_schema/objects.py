"""The keywords of objects."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any, Protocol

from slipstream.router.structured_output.json_schema import numbers
from slipstream.router.structured_output.json_schema.errors import Derived, SchemaError, child
from slipstream.router.structured_output.json_schema.negation import negated
from slipstream.router.structured_output.regex import automaton
from slipstream.router.structured_output.regex import expression as regex
from slipstream.router.structured_output.regex.expression import ANY_TEXT, Regex
from slipstream.router.structured_output.regex.pattern_parser import PatternError
from slipstream.router.structured_output.regex.patterns import as_pattern, as_patterns, searched

MAX_COMBINATIONS = 64  # of properties, to count them
MAX_PROPERTIES = 100_000
MAX_OVERLAPPING = 4  # patterns of names
OTHER_REFERENCES = ("$dynamicRef", "$recursiveRef")


class ObjectPart(frozenset[str]):
    """What a schema is that is only a part of another: not to be closed by itself. It holds the names of the properties
    that other parts define too."""


class Rewriter(Protocol):
    """What the keywords of one schema need of all others."""

    def schema(self, value: Any, pointer: str, part: ObjectPart | None) -> Any: ...

    def resolve(self, reference: Any, pointer: str) -> tuple[Any, str]: ...


def rewrite_object(
    rewriter: Rewriter, schema: dict[str, Any], pointer: str, part: ObjectPart | None, out: dict[str, Any]
) -> list[Any]:
    """Adds the keywords of objects to `out`, and returns further schemas that have to hold beside it."""
    properties = {
        name: rewriter.schema(inner, child(pointer, "properties", name), _part_of(part, name))
        for name, inner in mapping(schema, "properties", pointer).items()
    }
    patterns = {
        _key_pattern(text, child(pointer, "patternProperties", text)): rewriter.schema(
            inner, child(pointer, "patternProperties", text), part and ObjectPart()
        )
        for text, inner in mapping(schema, "patternProperties", pointer).items()
    }
    others: Any = None
    if "additionalProperties" in schema:
        others = rewriter.schema(
            schema["additionalProperties"], child(pointer, "additionalProperties"), part and ObjectPart()
        )
    required = _names(schema, "required", pointer)
    if "propertyNames" in schema:
        at = child(pointer, "propertyNames")
        properties, patterns, others = _named(
            _key_texts(rewriter, schema["propertyNames"], at), properties, patterns, others, at
        )
        for name in required:
            if name not in properties and not patterns and others is False:
                raise SchemaError(at, f"the required property {name!r} may not be named so")
    if properties or "properties" in schema:
        out["properties"] = properties
    if patterns:
        apart = _apart(patterns, child(pointer, "patternProperties"))
        out["patternProperties"] = {as_pattern(node): inner for node, inner in apart.items()}
    if others is not None:
        out["additionalProperties"] = others
    if required:
        out["required"] = required
    return [*_dependent(rewriter, schema, pointer, part or ObjectPart())]


def count_properties(schema: dict[str, Any], pointer: str, out: dict[str, Any]) -> list[Any]:
    """The numbers of properties: as they are where llguidance can count, else as alternatives of names that have to be
    there or must not be."""
    extra: list[Any] = []
    required = set(out.get("required", ()))
    known = dict.fromkeys([*out.get("properties", ()), *required])
    optional = [name for name in known if name not in required and out.get("properties", {}).get(name) is not False]
    is_closed = out.get("additionalProperties") is False and "patternProperties" not in out
    for key in ("minProperties", "maxProperties"):
        if key not in schema:
            continue
        at = child(pointer, key)
        count = numbers.count(schema[key], at)
        if key == "minProperties" and count > MAX_PROPERTIES:
            raise SchemaError(at, f"{count} properties are too many: {MAX_PROPERTIES} are the most")
        count = min(count, MAX_PROPERTIES)
        missing = count - len(required)
        if (key == "minProperties" and missing <= 0) or (key == "maxProperties" and count >= len(known) and is_closed):
            continue
        if not optional:
            out[key] = count
        elif not is_closed:
            raise SchemaError(at, "it is only served where all properties are required, or no others are allowed")
        elif missing < 0 or missing > len(optional):
            raise SchemaError(at, f"{count} properties are not possible: {len(required)} to {len(known)} are")
        elif comb(len(optional), missing) > MAX_COMBINATIONS:
            raise SchemaError(at, f"there are more than {MAX_COMBINATIONS} ways to choose {missing} of {len(optional)}")
        elif key == "minProperties":
            extra.append({"anyOf": [{"required": list(names)} for names in combinations(optional, missing)]})
        else:
            dropped = combinations(optional, len(optional) - missing)
            extra.append({"anyOf": [{"properties": dict.fromkeys(names, False)} for names in dropped]})
    return extra


def mapping(schema: dict[str, Any], key: str, pointer: str) -> dict[str, Any]:
    value = schema.get(key, {})
    if not isinstance(value, dict):
        raise SchemaError(child(pointer, key), "it is not an object")
    return value


def _names(schema: dict[str, Any], key: str, pointer: str) -> list[str]:
    value = schema.get(key, [])
    if isinstance(value, bool) and key == "required":  # draft 3, inside a property: an annotation since
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise SchemaError(child(pointer, key), "it is not a list of names")
    return list(dict.fromkeys(value))


def _part_of(part: ObjectPart | None, name: str) -> ObjectPart | None:
    return ObjectPart() if part is not None and name in part else None


def _key_pattern(text: str, at: str) -> Regex:
    try:
        node = searched(text)
        as_pattern(node)
    except (PatternError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SchemaError(at, f"the pattern {text[:60]!r} is not served: {reason}") from error
    return node


def _apart(patterns: dict[Regex, Any], at: str) -> dict[Regex, Any]:
    """Patterns of which no two match the same name, as llguidance wants them: one for each set of patterns that can
    match together."""
    try:
        if all(automaton.is_empty(regex.both(*pair)) for pair in combinations(patterns, 2)):
            return patterns
        if len(patterns) > MAX_OVERLAPPING:
            raise SchemaError(at, f"of patterns that match the same names, {MAX_OVERLAPPING} are the most")
        apart: dict[Regex, Any] = {}
        for count in range(1, len(patterns) + 1):
            for chosen in combinations(patterns, count):
                rest = (regex.negated(node) for node in patterns if node not in chosen)
                node = automaton.plain(regex.both(*chosen, *rest))
                if node != regex.NOTHING:
                    parts = [patterns[one] for one in chosen]
                    apart[node] = parts[0] if count == 1 else {"allOf": parts}
        return apart
    except automaton.TooComplexError as error:
        raise SchemaError(at, "it is too complex to find out which of its patterns match the same names") from error


def _key_texts(rewriter: Rewriter, schema: Any, pointer: str) -> list[str] | Regex:
    """The names that a schema of names allows: a list of them, or an expression."""
    if schema is True:
        return ANY_TEXT
    if schema is False:
        return []
    rewritten = rewriter.schema({"type": "string", "allOf": [schema]}, Derived(pointer), ObjectPart())
    return _texts(rewriter, rewritten, schema, pointer)


def _texts(rewriter: Rewriter, rewritten: Any, schema: Any, pointer: str) -> list[str] | Regex:
    if not isinstance(schema, dict):
        raise SchemaError(pointer, "a schema is an object or a boolean")
    if "$ref" in schema:
        return _texts(rewriter, rewritten, *rewriter.resolve(schema["$ref"], pointer))
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return [value for value in values if isinstance(value, str)]
    node: Regex = ANY_TEXT
    for key in ("pattern", "minLength", "maxLength", "anyOf", "oneOf", "allOf", "not", "if", *OTHER_REFERENCES):
        if key not in schema:
            continue
        if key == "pattern":
            node = regex.both(node, _key_pattern(schema[key], child(pointer, key)))
        elif key == "minLength":
            node = regex.both(node, regex.repeat(regex.ANY_CHAR, schema[key], None))
        elif key == "maxLength":
            node = regex.both(node, regex.repeat(regex.ANY_CHAR, 0, schema[key]))
        else:
            raise SchemaError(child(pointer, key), f"{key!r} of names is not served")
    return node


def _named(
    allowed: list[str] | Regex, properties: dict[str, Any], patterns: dict[Regex, Any], others: Any, at: str
) -> tuple[dict[str, Any], dict[Regex, Any], Any]:
    """Properties, patterns and other properties with names among those that are allowed."""
    others = True if others is None else others
    if isinstance(allowed, list):
        if patterns:
            raise SchemaError(at, "together with 'patternProperties' it is not served")
        names = dict.fromkeys([*properties, *allowed])
        return {name: properties.get(name, others) if name in allowed else False for name in names}, {}, False
    if allowed == ANY_TEXT:
        return properties, patterns, others
    try:
        fitting = {name: inner if automaton.matches(allowed, name) else False for name, inner in properties.items()}
        narrowed = {regex.both(allowed, node): inner for node, inner in patterns.items()}
        if others is not False:
            rest = regex.both(allowed, *(regex.negated(node) for node in patterns))
            if not automaton.is_empty(rest):
                narrowed[rest] = others
        for node in narrowed:
            as_patterns(node)
            as_pattern(node)
    except (automaton.TooComplexError, PatternError) as error:
        raise SchemaError(at, "together with the other keywords it is too complex") from error
    return fitting, narrowed, False


def _dependent(rewriter: Rewriter, schema: dict[str, Any], pointer: str, part: ObjectPart) -> list[Any]:
    """What has to hold where a property is there: either it is not, or that holds."""
    extra: list[Any] = []

    def add(name: str, inner: Any) -> None:
        extra.append({"anyOf": [{"properties": {name: False}}, inner]})

    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, needed in mapping(schema, key, pointer).items():
            at = child(pointer, key, name)
            if isinstance(needed, list) and key != "dependentSchemas":
                add(name, {"required": [name, *_names({name: needed}, name, child(pointer, key))]})
            elif key != "dependentRequired":
                add(name, {"allOf": [{"required": [name]}, rewriter.schema(needed, at, part)]})
            else:
                raise SchemaError(at, "it is not a list of names")
    return extra


def exactly_one_required(branches: list[Any]) -> list[dict[str, Any]] | None:
    """The branches of a `oneOf` that only differ in `required`, so that no two can hold; None if they are others."""
    names: list[list[str]] = []
    for branch in branches:
        own = branch["required"] if isinstance(branch, dict) and branch.keys() == {"required"} else None
        if not isinstance(own, list) or not all(isinstance(name, str) for name in own):
            return None
        names.append(own)
    out = []
    for number, own in enumerate(names):
        other = [set(rest) - set(own) for index, rest in enumerate(names) if index != number]
        if all(other):
            out.append({"required": own, "properties": dict.fromkeys(sorted(set().union(*other)), False)})
    return out


def conditional(rewriter: Rewriter, schema: dict[str, Any], pointer: str, part: ObjectPart) -> list[Any]:
    """`if`, `then` and `else` as two alternatives."""
    if "if" not in schema or not {"then", "else"} & schema.keys():
        return []
    at = child(pointer, "if")
    holds = rewriter.schema(schema["if"], at, part)
    fails = rewriter.schema(negated(schema["if"], at, rewriter.resolve), Derived(at), part)
    options = [
        {"allOf": [condition, rewriter.schema(schema.get(key, True), child(pointer, key), part)]}
        for condition, key in ((holds, "then"), (fails, "else"))
        if condition is not False
    ]
    return [{"anyOf": options}] if options else [False]
