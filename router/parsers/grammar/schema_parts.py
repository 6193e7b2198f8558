"""Parts of a rewritten JSON schema, for formats that write arguments otherwise than as one JSON object."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from slipstream.router.structured_output.json_schema.anything import MAX_FREE_PROPERTIES, NAME
from slipstream.router.structured_output.regex.patterns import as_pattern, searched

REFERENCE = "#/$defs/"
MAX_REFERENCES = 16
UNIONS = ("anyOf", "oneOf")
MAX_OPTIONS = 16
MAX_MERGED = 100
SCHEMAS_BY_NAME = ("properties", "patternProperties")
LISTS_OF_SCHEMAS = ("prefixItems", "allOf", *UNIONS)
SCHEMAS = ("items", "additionalProperties")


class ObjectParts(NamedTuple):
    """The properties of an object in their order. `others` is the schema of further ones, of which there are from
    `least_others` to `most_others`; None: there are none."""

    properties: dict[str, Any]
    required: frozenset[str]
    others: Any = None
    least_others: int = 0
    most_others: int = MAX_FREE_PROPERTIES

    @property
    def repeats_of_others(self) -> str:
        """How often they may be there, for Lark."""
        return f"{{{self.least_others},{self.most_others}}}"


def object_options(schema: Any, definitions: dict[str, Any], depth: int = MAX_REFERENCES) -> list[ObjectParts] | None:
    """The objects that a schema allows, any of which may come. None if that takes more than lists of properties."""
    found = merged(resolved(schema, definitions), definitions)
    if found is None or depth == 0 or any(key in found for key in ("patternProperties", "enum", "const")):
        return None
    for key in UNIONS:
        if key in found:
            base = {name: value for name, value in found.items() if name != key}
            listed: list[ObjectParts] = []
            for option in found[key]:
                parts = object_options({"allOf": [base, option]}, definitions, depth - 1)
                if not parts or len(listed) + len(parts) > MAX_OPTIONS:
                    return None
                listed += parts
            return listed
    properties = dict(found.get("properties", {}))
    required = frozenset(found.get("required", ()))
    others = found.get("additionalProperties")
    if others is None and not properties:
        others = True
    for name in found.get("required", ()):
        properties.setdefault(name, True)
    if others is None or others is False:
        return [ObjectParts(properties, required)]
    least = max(0, found.get("minProperties", 0) - len(properties))
    most = found.get("maxProperties", MAX_FREE_PROPERTIES) - len(properties)
    return [ObjectParts(properties, required, others, least, max(least, min(most, MAX_FREE_PROPERTIES)))]


def resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    """What a schema that is only a reference, or one of a single schema, refers to in the end."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict):
            break
        if "$ref" in schema:
            others = {key: value for key, value in schema.items() if key != "$ref"}
            target = definitions.get(schema["$ref"].removeprefix(REFERENCE), True)
            if others:
                return {"allOf": [target, others]}
            schema = target
        elif schema.keys() == {"allOf"} and len(schema["allOf"]) == 1:
            (schema,) = schema["allOf"]
        else:
            break
    return schema


def merged(schema: Any, definitions: dict[str, Any]) -> dict[str, Any] | None:
    """A schema without `allOf`: one that says what all of those say. None if none can be written down. Each part counts
    once: a client's schema may name one a thousand times."""
    if isinstance(schema, dict) and "allOf" not in schema:
        return schema
    whole: dict[str, Any] = {}
    seen: dict[int, Any] = {}
    left = [schema]
    while left:
        part = resolved(left.pop(), definitions)
        if part is True or id(part) in seen:
            continue
        if not isinstance(part, dict) or len(seen) >= MAX_MERGED:
            return None
        seen[id(part)] = part
        left += reversed(part.get("allOf", ()))
        one = {key: value for key, value in part.items() if key != "allOf"}
        if is_beyond(whole, one) or is_beyond(one, whole):
            return None
        for key, value in one.items():
            both = _both(key, whole[key], value) if key in whole else value
            if both is None:
                return None
            whole[key] = both
    return whole


def is_beyond(schema: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a schema names a property of which another one speaks as one of those that it does not name."""
    return (
        "additionalProperties" in other
        and not schema.get("properties", {}).keys() <= other.get("properties", {}).keys()
    )


def _both(key: str, one: Any, other: Any) -> Any:
    """The value of a keyword that two schemas have; None if there is none."""
    if one == other:
        return one
    match key:
        case "required":
            return [*one, *(name for name in other if name not in one)]
        case "properties":
            return {**one, **other, **{name: _all_of(one[name], other[name]) for name in one if name in other}}
        case "enum":
            return [value for value in one if value in other] or None
        case "type":
            named = [one] if isinstance(one, str) else one
            others = [other] if isinstance(other, str) else other
            found = [name for name in named if name in others or (name == "integer" and "number" in others)]
            return found or (["integer"] if "integer" in others and "number" in named else None)
        case "minLength" | "minItems" | "minProperties" | "minimum" | "exclusiveMinimum":
            return max(one, other)
        case "maxLength" | "maxItems" | "maxProperties" | "maximum" | "exclusiveMaximum":
            return min(one, other)
    return None


def _all_of(one: Any, other: Any) -> Any:
    if one is True or other is True:
        return other if one is True else one
    return one if one == other else {"allOf": [one, other]}


def is_anything(schema: Any) -> bool:
    """Whether every value fits."""
    return schema is True or schema == {} or (isinstance(schema, dict) and schema.get("$ref") == REFERENCE + NAME)


def used(schema: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The definitions that a schema needs."""
    found: dict[str, Any] = {}
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            name = str(value.get("$ref", "")).removeprefix(REFERENCE)
            if name in definitions and name not in found:
                found[name] = definitions[name]
                left.append(definitions[name])
            left += value.values()
    return found


def without_text(schema: Any, text: str) -> Any:
    """The schema for values in which no string and no free name of a property contains `text`."""
    return _avoiding(schema, pattern_without(text))


@lru_cache(maxsize=64)
def pattern_without(text: str) -> str:
    """The pattern of all texts without another one in them."""
    inside = "".join(f"\\{c}" if not c.isalnum() and ord(c) < 128 else c for c in text)
    return as_pattern(searched(rf"^(?![\s\S]*{inside})[\s\S]*$"))


def _avoiding(schema: Any, pattern: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    for key in SCHEMAS_BY_NAME:
        if key in out:
            out[key] = {name: _avoiding(value, pattern) for name, value in out[key].items()}
    for key in LISTS_OF_SCHEMAS:
        if key in out:
            out[key] = [_avoiding(value, pattern) for value in out[key]]
    for key in SCHEMAS:
        if key in out:
            out[key] = _avoiding(out[key], pattern)
    types = out.get("type", ())
    is_exact = "enum" in out or "const" in out
    if ("string" in types if isinstance(types, list) else types == "string") and not is_exact:
        if "pattern" in out:
            return {"allOf": [out, {"pattern": pattern}]}
        out["pattern"] = pattern
    others = out.get("additionalProperties")
    if isinstance(others, dict) and not out.get("properties") and "patternProperties" not in out:
        out |= {"patternProperties": {pattern: others}, "additionalProperties": False}
    return out
