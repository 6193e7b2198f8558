"""The keywords of JSON schemas that constrain values. All others are annotations and are ignored, as the specification
has it: `title`, `x-...`, OpenAPI's `xml` and so on."""

from __future__ import annotations

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

OF_OBJECTS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "required", "propertyNames", "minProperties"}
    | {"maxProperties", "unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies"}
)
OF_ARRAYS = frozenset(
    {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains", "minContains", "maxContains"}
    | {"uniqueItems", "unevaluatedItems"}
)
OF_STRINGS = frozenset({"pattern", "format", "minLength", "maxLength"})
OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
OF_ALL = frozenset({"type", "enum", "const"})
COMBINED = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "$recursiveRef", "if", "not"})
ASKING = OF_OBJECTS | OF_ARRAYS | OF_STRINGS | OF_NUMBERS | OF_ALL | COMBINED | {"then", "else", "nullable"}


class _Annotations:
    def __contains__(self, keyword: object) -> bool:
        return keyword not in ASKING


ANNOTATIONS = _Annotations()
BY_TYPE = {"object": OF_OBJECTS, "array": OF_ARRAYS, "string": OF_STRINGS, "number": OF_NUMBERS}


def meant_type(keywords: frozenset[str]) -> str | None:
    """The type that a schema without `type` is about, if its keywords are all about one type."""
    if not keywords.isdisjoint(OF_ALL | COMBINED):
        return None
    meant = [name for name, own in BY_TYPE.items() if not keywords.isdisjoint(own)]
    return meant[0] if len(meant) == 1 else None
