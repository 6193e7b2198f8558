"""From a client's JSON schema to one that llguidance takes and that allows no value which the client's does not.

Annotations are left out, keywords that llguidance lacks are expressed by others, and what cannot be expressed is
refused by its JSON pointer. Where it cannot be said exactly, fewer values are allowed than could be. Three things are
wider than the schema: a `oneOf` whose branches are not apart is an `anyOf`, `uniqueItems` is followed for few values
only, and OpenAPI's `nullable` allows null.

References become references to `$defs` of their own, one for each target and use, so that nothing is ever copied.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import orjson

from slipstream.router.structured_output.json_schema import numbers
from slipstream.router.structured_output.json_schema.anything import ANYTHING, DEFINITION, MAX_FREE_PROPERTIES, NAME
from slipstream.router.structured_output.json_schema.arrays import rewrite_array
from slipstream.router.structured_output.json_schema.closing import BRANCHES, Names, branch_names, closed, names_of
from slipstream.router.structured_output.json_schema.document import Document
from slipstream.router.structured_output.json_schema.errors import Derived, SchemaError, child
from slipstream.router.structured_output.json_schema.keywords import (
    ASKING,
    COMBINED,
    OF_ARRAYS,
    OF_NUMBERS,
    OF_OBJECTS,
    TYPES,
    meant_type,
)
from slipstream.router.structured_output.json_schema.negation import negated
from slipstream.router.structured_output.json_schema.objects import (
    ObjectPart,
    conditional,
    count_properties,
    exactly_one_required,
    rewrite_object,
)
from slipstream.router.structured_output.json_schema.strings import rewrite_string

MAX_SCHEMAS = 20_000  # of all parts of a rewritten schema together
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class Rewritten:
    """A schema for llguidance. `pointer_of` says for each schema in it where it comes from; `divisors` are its
    `multipleOf`s, each with its pointer."""

    def __init__(
        self, schema: dict[str, Any], pointer_of: Callable[[Any], str | None], divisors: dict[Fraction, str]
    ) -> None:
        self.schema = schema
        self.pointer_of = pointer_of
        self.divisors = list(divisors.items())


def rewrite(schema: Any, *, open_objects: bool = False) -> Rewritten:
    """Raises SchemaError. With `open_objects`, an object without `additionalProperties` may have others than its
    `properties`, as in JSON Schema, and a schema without `type` is for values of all types."""
    rewriter = _Rewriter(schema, open_objects=open_objects)
    root = rewriter.root()
    return Rewritten(root, rewriter.pointer_of, rewriter.divisors)


class _Rewriter:
    def __init__(self, schema: Any, *, open_objects: bool) -> None:
        self._document = Document(schema)
        self._open_objects = open_objects
        self._definitions: dict[tuple[str, ObjectPart | None], str] = {}
        self._left: list[tuple[str, ObjectPart | None]] = []  # definitions that are still to be rewritten
        self._origins: dict[int, tuple[Any, str]] = {}  # the schema is kept with its id, so that no other gets that
        self._num_schemas = 0
        self._uses_anything = False
        self.divisors: dict[Fraction, str] = {}

    def root(self) -> dict[str, Any]:
        root = self.schema(self._document.root, "", None)
        if root is False:
            raise SchemaError("", "nothing fits it")
        out: dict[str, Any] = dict(root) if isinstance(root, dict) else {}
        definitions = {}
        while self._left:
            key = self._left.pop()
            pointer, part = key
            definitions[self._definitions[key]] = self.schema(self._document.value(pointer), pointer, part)
        if self._uses_anything:
            definitions[NAME] = DEFINITION
        if definitions:
            out["$defs"] = definitions
        self._note(out, "")
        return out

    def pointer_of(self, schema: Any) -> str | None:
        found = self._origins.get(id(schema))
        return None if found is None else str(found[1])

    def resolve(self, reference: Any, pointer: str, key: str = "$ref") -> tuple[Any, str]:
        where = self._document.target(reference, pointer, key)
        return self._document.value(where), where

    def schema(self, value: Any, pointer: str, part: ObjectPart | None) -> Any:
        if value is True and part is None:
            return self._anything()
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise SchemaError(pointer, "a schema is an object or a boolean")
        self._num_schemas += 1
        if self._num_schemas > MAX_SCHEMAS:
            raise SchemaError(pointer, f"with what it refers to, it has more than {MAX_SCHEMAS} parts")
        asked = {key: inner for key, inner in value.items() if key in ASKING}
        if not asked:
            return self.schema(True, pointer, part)
        out = self._asked(asked, pointer, part)
        self._note(out, pointer)
        return out

    def _anything(self) -> Any:
        """What stands for a value of any kind."""
        if self._open_objects:
            return True
        self._uses_anything = True
        return dict(ANYTHING)

    def _asked(self, schema: dict[str, Any], pointer: str, part: ObjectPart | None) -> Any:
        types = _types(schema, pointer)
        if types is None and part is None and not self._open_objects:
            meant = meant_type(frozenset(schema))
            types = [meant] if meant else None
        own = _Closing(self, schema, pointer, part, is_open=self._open_objects)
        out: dict[str, Any] = {}
        extra: list[Any] = []
        is_counted = False
        for key, inner in schema.items():
            if key in REFERENCES:
                extra += self._referred(key, inner, pointer, own.part, out)
            elif key in ("allOf", *BRANCHES):
                out[key] = self._combined(key, inner, pointer, own)
            elif key in ("enum", "const"):
                out[key] = _exact(inner, pointer, key)
            elif key in OF_OBJECTS and not is_counted:
                is_counted = True
                extra += rewrite_object(self, schema, pointer, own.part, out)
                own.close_alone(out)
                extra += count_properties(schema, pointer, out)
        if not OF_ARRAYS.isdisjoint(schema):
            extra += rewrite_array(self, schema, pointer, own.part, out)
        extra += rewrite_string(schema, pointer, out)
        if not OF_NUMBERS.isdisjoint(schema):
            self._rewrite_numbers(schema, pointer, types, out)
        extra += conditional(self, schema, pointer, own.part or ObjectPart())
        if "not" in schema:
            at = child(pointer, "not")
            extra.append(self.schema(negated(schema["not"], at, self.resolve), Derived(at), own.part or ObjectPart()))
        extra += own.closing()
        if types is not None and part is None and own.is_alone and not {"enum", "const"} & out.keys():
            self._bound(types, out)
        if types is not None:
            out = {"type": types[0] if len(types) == 1 else types, **out}
        if False in extra:
            return False
        whole: Any = {"allOf": [out, *extra]} if extra else out
        if schema.get("nullable") is True and part is None and (types is None or "null" not in types):
            whole = {"anyOf": [whole, {"type": "null"}]}
        return whole

    def _bound(self, types: list[str], out: dict[str, Any]) -> None:
        """Bounds the number of properties if it does not follow from their names, here and in what may be in it."""
        if self._open_objects:
            return
        if "array" in types and "items" not in out:
            out["items"] = self._anything()
        if "object" in types and out.get("additionalProperties") is not False:
            if "additionalProperties" not in out:
                out["additionalProperties"] = self._anything()
            if not out.get("properties") and not out.get("required") and "maxProperties" not in out:
                out["maxProperties"] = max(MAX_FREE_PROPERTIES, 2 * int(out.get("minProperties", 0)))

    def _referred(
        self, key: str, reference: Any, pointer: str, part: ObjectPart | None, out: dict[str, Any]
    ) -> list[Any]:
        where = self._end_of_chain(reference, pointer, key)
        target = self._document.value(where)
        if isinstance(target, bool):
            return [] if target else [False]
        name = self._definitions.get((where, part))
        if name is None:
            name = self._definitions[where, part] = f"r{len(self._definitions)}"
            self._left.append((where, part))
        if "$ref" in out:
            return [{"$ref": f"#/$defs/{name}"}]
        out["$ref"] = f"#/$defs/{name}"
        return []

    def _end_of_chain(self, reference: Any, pointer: str, key: str) -> str:
        """The target of a reference, or of that if it is nothing but a reference itself."""
        seen = set()
        at = child(pointer, key)
        while True:
            where = self._document.target(reference, pointer, key)
            if where in seen:
                raise SchemaError(at, "it refers to itself without end")
            seen.add(where)
            target = self._document.value(where)
            if not isinstance(target, dict) or {name for name in target if name in ASKING} != {"$ref"}:
                return where
            reference, pointer, key = target["$ref"], where, "$ref"

    def _combined(self, key: str, inner: Any, pointer: str, own: _Closing) -> list[Any]:
        at = child(pointer, key)
        if not isinstance(inner, list) or not inner:
            raise SchemaError(at, "it is not a list of schemas")
        if key == "oneOf":
            apart = exactly_one_required(inner)
            if apart is not None:
                if not apart:
                    raise SchemaError(at, "no branch of it can hold alone")
                return [self.schema(branch, Derived(at), ObjectPart()) for branch in apart]
        branches = [self.schema(value, child(at, number), own.part) for number, value in enumerate(inner)]
        return own.close_branches(key, branches)

    def _rewrite_numbers(
        self, schema: dict[str, Any], pointer: str, types: list[str] | None, out: dict[str, Any]
    ) -> None:
        out |= numbers.bounds(schema, pointer, is_integer=types is not None and "integer" in types)
        if "multipleOf" in schema:
            at = child(pointer, "multipleOf")
            divisor = numbers.number(schema["multipleOf"], at)
            if divisor <= 0:
                raise SchemaError(at, f"{schema['multipleOf']} is not above 0")
            out["multipleOf"] = int(divisor) if divisor.denominator == 1 else float(divisor)
            self.divisors.setdefault(divisor, at)

    def _note(self, schema: Any, pointer: str) -> None:
        if isinstance(schema, dict):
            self._origins[id(schema)] = schema, pointer


class _Closing:
    """How the objects of one schema are closed: by itself, in the branches of its `anyOf` or `oneOf`, by a further
    schema beside it, or not at all. `part` is what the schemas in it are parts of."""

    def __init__(
        self, rewriter: _Rewriter, schema: dict[str, Any], pointer: str, part: ObjectPart | None, *, is_open: bool
    ) -> None:
        self._rewriter, self._schema, self._pointer, self._is_part = rewriter, schema, pointer, part is not None
        self._others: Any = False
        self._names: Names | None = None
        self._branched: str | None = None
        combined = [key for key in COMBINED if key in schema and key != "not"]
        combined += [key for key in ("dependentSchemas", "dependencies") if key in schema]
        own = OF_OBJECTS - {"dependentSchemas", "dependencies"}
        num_parts = len(combined) - 1 + (len(schema["allOf"]) if isinstance(schema.get("allOf"), list) else 1)
        self.is_alone = not combined
        if self.is_alone or (num_parts == 1 and own.isdisjoint(schema)):
            self.part = part
            if self.is_alone and not self._is_part and self._is_closed(is_open, schema):
                self._names = names_of(schema, pointer, rewriter.resolve)
            return
        names = names_of(schema, pointer, rewriter.resolve)
        shared = {name for name, count in names.counts.items() if count > 1}
        self.part = ObjectPart(shared | (part or set()))
        if not self._is_part and self._is_closed(is_open, schema) and names.has_properties and not names.has_patterns:
            base = names_of(schema, pointer, rewriter.resolve, branches=False)
            if not base.is_declared:
                self._names = names
                self._base = base

    def _is_closed(self, is_open: bool, schema: dict[str, Any]) -> bool:
        if "additionalProperties" in schema:
            return False
        if "unevaluatedProperties" in schema:
            self._others = self._rewriter.schema(
                schema["unevaluatedProperties"], child(self._pointer, "unevaluatedProperties"), None
            )
            return True
        return not is_open and "propertyNames" not in schema

    def close_alone(self, out: dict[str, Any]) -> None:
        """Closes a schema that has no parts."""
        names_all = "properties" in out or "unevaluatedProperties" in self._schema
        if not self.is_alone or self._names is None or not names_all or "additionalProperties" in out:
            return
        properties = out.setdefault("properties", {})
        if not out.get("patternProperties"):
            for name in out.get("required", ()):
                properties.setdefault(name, True)
        out["additionalProperties"] = self._others

    def close_branches(self, key: str, branches: list[Any]) -> list[Any]:
        if key not in BRANCHES or self.is_alone or self._names is None or self._branched is not None:
            return branches
        own = branch_names(self._schema, key, self._pointer, self._rewriter.resolve)
        if not any(names.has_properties for names in own):
            return branches
        self._branched = key
        elsewhere = dict.fromkeys(self._base.counts)
        for other in BRANCHES:
            if other != key:
                for names in branch_names(self._schema, other, self._pointer, self._rewriter.resolve):
                    elsewhere |= dict.fromkeys(names.counts)
        out = []
        for branch, names in zip(branches, own, strict=True):
            if isinstance(branch, bool) or names.is_declared:
                out.append(branch)
            else:
                out.append({"allOf": [branch, closed([*elsewhere, *names.counts], self._others)]})
        return out

    def closing(self) -> list[Any]:
        """Schemas that have to hold beside the whole."""
        if self.is_alone or self._names is None or self._branched is not None:
            return []
        return [closed(self._names.counts, self._others)]


def _types(schema: dict[str, Any], pointer: str) -> list[str] | None:
    if "type" not in schema:
        return None
    value = schema["type"]
    names = value if isinstance(value, list) else [value]
    for name in names:
        if name not in TYPES:
            raise SchemaError(child(pointer, "type"), f"{name!r:.60} is not a type")
    if not names:
        raise SchemaError(child(pointer, "type"), "it names no type")
    return [name for name in dict.fromkeys(names) if not (name == "integer" and "number" in names)]


def _exact(value: Any, pointer: str, key: str) -> Any:
    """The values of `const` or `enum`. Raises SchemaError for numbers that would be rounded."""
    at = child(pointer, key)
    if key == "enum" and (not isinstance(value, list) or not value):
        raise SchemaError(at, "it is not a list of values")
    left = [value]
    while left:
        inner = left.pop()
        if isinstance(inner, dict):
            left += inner.values()
        elif isinstance(inner, list):
            left += inner
        elif isinstance(inner, int) and not isinstance(inner, bool) and abs(inner) > 2**53:
            raise SchemaError(at, f"{str(inner)[:40]} is beyond the integers that are served as values, {2**53}")
        elif isinstance(inner, float):
            numbers.number(inner, at)
    if key == "const":
        return value
    return [orjson.loads(text) for text in dict.fromkeys(map(orjson.dumps, value))]
