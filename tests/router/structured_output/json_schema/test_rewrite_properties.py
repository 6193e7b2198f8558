"""Whatever a rewritten schema accepts, jsonschema finds valid against the client's; what is refused is refused by a
pointer into it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.router.protocol.grammar import GrammarError
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.structured_output.json_schema.document import Document
from tests.support.router.schema_sampling import drawn_text, grammar_spec_of, matcher_of

NAMES = st.sampled_from(["a", "b", "k"])
VALUES = st.sampled_from([None, True, False, 0, 1, -3, 2.5, "", "a", "b", "ab", [], [1], {"a": 1}])
BOUND = st.sampled_from([-(2**63), -1e308, -7, -0.5, 0, 0.25, 1, 1.5, 10, 100, 2**53 + 1, 2**63 - 1, 2**64 - 1, 1e308])
PATTERNS = st.sampled_from(
    [
        r"^a",
        "b$",
        "^[ab]{1,3}$",
        "^(?!a)",
        r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
        "^(?=.*a)[ab]+$",
        "^a|b$",
        r"\d{2}",
        "^(?!ab$).*$",
    ]
)
COUNTS = st.integers(0, 3)


def optional(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


STRINGS = optional(minLength=COUNTS, maxLength=COUNTS, pattern=PATTERNS, format=st.sampled_from(["password", "date"]))
NUMBERS = optional(
    minimum=BOUND,
    maximum=BOUND,
    exclusiveMinimum=BOUND,
    exclusiveMaximum=BOUND,
    multipleOf=st.sampled_from([1, 2, 3, 0.5]),
)
LEAVES = st.one_of(
    st.booleans(),
    STRINGS.map(lambda keywords: {"type": "string", **keywords}),
    NUMBERS.map(lambda keywords: {"type": "integer", **keywords}),
    NUMBERS.map(lambda keywords: {"type": "number", **keywords}),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, VALUES),
    st.sampled_from([{"type": ["null", "boolean"]}, {"$ref": "#/$defs/d"}, {"type": "string", "x-note": 1}]),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.dictionaries(NAMES, inner, max_size=3)
    lists = st.lists(inner, min_size=1, max_size=2)
    of_objects = optional(
        properties=members,
        required=st.lists(NAMES, unique=True, max_size=2),
        additionalProperties=inner,
        minProperties=COUNTS,
        maxProperties=COUNTS,
        dependentRequired=st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=2), max_size=1),
        propertyNames=st.one_of(st.just({"enum": ["a", "k"]}), PATTERNS.map(lambda pattern: {"pattern": pattern})),
        patternProperties=st.dictionaries(st.sampled_from(["^a", "b", "^x"]), inner, max_size=2),
        anyOf=lists,
        oneOf=lists,
        allOf=lists,
    )
    of_arrays = optional(
        items=inner, prefixItems=lists, minItems=COUNTS, maxItems=COUNTS, uniqueItems=st.booleans(), contains=inner
    )
    return st.one_of(
        of_objects.map(lambda keywords: {"type": "object", **keywords}),
        of_objects,
        of_arrays.map(lambda keywords: {"type": "array", **keywords}),
        st.builds(lambda kind, parts: {kind: parts}, st.sampled_from(["anyOf", "oneOf", "allOf"]), lists),
        st.builds(lambda base, part: {**base, "not": part}, LEAVES.filter(lambda leaf: isinstance(leaf, dict)), inner),
        st.builds(
            lambda a, b, c: {"type": "object", "if": {"properties": {"k": a}}, "then": b, "else": c},
            LEAVES,
            inner,
            inner,
        ),
    )


SCHEMAS = st.builds(
    lambda schema, definition: {**(schema if isinstance(schema, dict) else {}), "$defs": {"d": definition}},
    st.recursive(LEAVES, nested, max_leaves=8),
    st.recursive(LEAVES, nested, max_leaves=3),
)


def approximated(schema: Any) -> Any:
    """The schema as wide as it is documented to be."""
    if isinstance(schema, list):
        return [approximated(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: approximated(value) for key, value in schema.items() if key != "uniqueItems"}
    if "oneOf" in out:
        out["allOf"] = [*out.get("allOf", []), {"anyOf": out.pop("oneOf")}]
    return out


def tried(schema: Any, open_objects: bool) -> tuple[GrammarSpec | None, str]:
    try:
        return grammar_spec_of(schema, open_objects=open_objects), ""
    except GrammarError as error:
        return None, str(error)


class NameTwiceError(Exception):
    """Where names are free, a grammar cannot see that one comes twice: the object has fewer members than values."""


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        raise NameTwiceError
    return named


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.booleans(), st.integers(0, 1000))
def test_whatever_is_accepted_is_valid(schema: dict[str, Any], open_objects: bool, seed: int) -> None:
    grammar, fault = tried(schema, open_objects)
    if grammar is None:
        pointer = fault.removeprefix("at ").partition(":")[0] if fault.startswith("at ") else ""
        assert Document(schema).has(pointer), fault
        return
    matcher = matcher_of(grammar)
    oracle = jsonschema.Draft202012Validator(approximated(schema))
    for number in range(4):
        text = drawn_text(matcher, seed + number)
        if text is not None:
            # A definition that refers to itself has no end for jsonschema.
            with contextlib.suppress(RecursionError, NameTwiceError):
                oracle.validate(json.loads(text, object_pairs_hook=members))
