"""What becomes of the keywords of a JSON schema: what is accepted, what is refused, and by which pointer."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.router.protocol.grammar import GrammarError, grammar_of
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.structured_output.json_grammar import json_grammar_spec
from tests.support.router.schema_sampling import accepts, grammar_spec_of

Schema = Any
STRING = {"type": "string"}
INT = {"type": "integer"}


def obj(**properties: Schema) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


MAX_INT, MIN_INT = 2**63 - 1, -(2**63)
DEFS = {"A": obj(a=INT), "N": {**obj(n=INT), "properties": {"n": INT, "next": {"$ref": "#/$defs/N"}}}}
# Schema, texts that it accepts, texts that it does not.
TABLE: list[tuple[Schema, list[str], list[str]]] = [
    # Annotations.
    *(
        ({**STRING, key: value}, ['"x"'], ["1"])
        for key, value in {
            "format": "color",
            "title": 5,
            "examples": [1],
            "deprecated": True,
            "readOnly": True,
            "$comment": "c",
            "x-order": {"type": 3},
            "discriminator": {"propertyName": "k"},
            "xml": {"name": "n"},
            "externalDocs": {"url": "u"},
            "contentEncoding": "base64",
            "contentMediaType": "image/png",
            "default": 7,
            "$vocabulary": {},
            "enumNames": ["a"],
        }.items()
    ),
    ({**STRING, "nullable": True}, ['"x"', "null"], ["1"]),
    ({"nullable": True, "allOf": [{"$ref": "#/$defs/A"}], "$defs": DEFS}, ['{"a":1}', "null"], ['{"a":1,"b":2}']),
    # On one line.
    (
        obj(a=INT, b=INT),
        ['{"a":1,"b":2}', '{"a": 1, "b": 2}', '{"a": 1,"b":2}'],
        ['{"a":  1,"b":2}', '{"a":1,\n"b":2}', '{ "a":1,"b":2}', '{"a" :1,"b":2}', '{"b":2,"a":1}'],
    ),
    # Closed objects.
    ({"properties": {"a": INT}}, ["{}", '{"a":1}'], ['{"a":1,"b":1}', '{"a":1,"a":1}', "5"]),
    ({"type": "object", "properties": {"a": INT}, "required": ["b"]}, ['{"b":[1]}'], ['{"b":1,"c":1}']),
    ({**obj(a=INT), "additionalProperties": True}, ['{"a":1,"b":[]}'], ['{"a":1,"a":1}']),
    ({"type": "object"}, ["{}", '{"a":{"b":[1,null]}}'], ["1"]),
    ({"allOf": [{"$ref": "#/$defs/A"}, obj(b=INT)], "$defs": DEFS}, ['{"a":1,"b":2}'], ['{"a":1,"b":2,"c":3}']),
    ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": DEFS}, ['{"a":1}'], ['{"a":1,"c":3}']),
    (
        {**obj(k={"enum": [1, 2]}), "anyOf": [obj(k={"const": 1}, x=INT), obj(k={"const": 2}, y=INT)]},
        ['{"k":1,"x":3}', '{"k":2,"y":3}'],
        ['{"k":1,"y":3}', '{"k":1,"x":3,"y":3}', '{"k":1,"x":3,"z":3}'],
    ),
    (
        {**obj(a=INT), "unevaluatedProperties": STRING, "allOf": [obj(b=INT)]},
        ['{"a":1,"b":1,"c":""}'],
        ['{"a":1,"b":1,"c":1}'],
    ),
    # oneOf.
    ({"oneOf": [obj(a=INT), obj(b=INT)]}, ['{"a":1}', '{"b":1}'], ['{"a":1,"b":1}']),
    ({"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": DEFS}, ['{"a":1}', "null"], ["1"]),
    (
        {"type": "object", "properties": {"a": INT, "b": INT}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1}'],
        ['{"a":1,"b":1}', "{}"],
    ),
    # Bounds of every width.
    ({**INT, "minimum": MIN_INT, "maximum": MAX_INT}, [str(MAX_INT), "-9223372036854774784", "0"], [str(MAX_INT + 1)]),
    ({**INT, "minimum": 0, "maximum": 2**64 - 1}, ["0", str(MAX_INT)], ["-1", str(2**64)]),
    ({**INT, "minimum": 2**53 + 1}, [str(2**53 + 2)], [str(2**53)]),
    ({**INT, "exclusiveMinimum": 1.5, "exclusiveMaximum": 4}, ["2", "3"], ["1", "4"]),
    ({**INT, "minimum": 10**18}, [str(10**18)], ["5"]),
    ({**INT, "minimum": 2, "maximum": 20, "multipleOf": 5}, ["5", "20"], ["0", "6"]),
    ({"type": "number", "minimum": -1e308, "maximum": 1e308}, ["-1.5", "100000"], ["1e999"]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, ["0.5"], ["0", "0.0", "1"]),
    ({"type": "number", "minimum": -1, "exclusiveMaximum": 0}, ["-0.5"], ["-0", "0"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "-0", "0.0", "0.51"]),
    ({"type": "number", "exclusiveMinimum": 5, "maximum": 5.5}, ["5.1", "5.5"], ["5", "5.0", "5.51"]),
    ({"type": "number", "minimum": -5.5, "exclusiveMaximum": -5}, ["-5.1", "-5.5"], ["-5", "-5.0", "-5.51"]),
    ({"type": "number", "exclusiveMinimum": 99999, "maximum": 99999.5}, ["99999.1", "99999.5"], ["99999", "99999.0"]),
    ({"type": "number", "minimum": 5e-324}, ["0.1", "3"], ["0", "-1"]),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, ["0.5"], ["0"]),
    ({"minimum": 3}, ["3", "4.5"], ["2", '"a"']),
    # Strings.
    ({**STRING, "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, ['"1.5"', '"-.5"'], ['"."', '"1.5x"', '""']),
    (
        {**STRING, "pattern": r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,8}|(?=[\d.]{1,11}0*$)\d{0,8}\.\d{0,2}0*$)"},
        ['"12345678.25"', '"7"'],
        ['"1.234"', '"x"', '"1x"'],
    ),
    ({**STRING, "pattern": r"^(?=.*\d)(?=.*[a-z]).{2,}$"}, ['"a1"'], ['"aa"', '"1"']),
    ({**STRING, "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"0000-01-01"', '"2023-1-1"']),
    (
        {**STRING, "format": "uuid4"},
        ['"00000000-0000-4000-8000-000000000000"'],
        ['"00000000-0000-1000-8000-000000000000"'],
    ),
    ({**STRING, "maxLength": 2**31 - 1, "minLength": 2.0}, ['"ab"'], ['"a"']),
    # Combinations.
    ({**STRING, "not": {"enum": ["a", "b"]}}, ['"ab"', '"c"'], ['"a"', '"b"', "1"]),
    ({"not": {"type": ["object", "array"]}}, ["1", '"a"', "null"], ["{}", "[]"]),
    ({**INT, "not": {"minimum": 5}}, ["4"], ["5"]),
    (
        {
            **obj(k={"enum": ["a", "b"]}),
            "properties": {"k": {"enum": ["a", "b"]}, "v": INT},
            "if": {"properties": {"k": {"const": "a"}}},
            "then": {"required": ["v"]},
            "else": {"properties": {"v": False}},
        },
        ['{"k":"a","v":1}', '{"k":"b"}'],
        ['{"k":"a"}', '{"k":"b","v":1}'],
    ),
    (
        {"type": "object", "properties": {"a": INT, "b": INT}, "dependentRequired": {"a": ["b"]}},
        ["{}", '{"b":1}', '{"a":1,"b":1}'],
        ['{"a":1}'],
    ),
    # References.
    ({"$ref": "#/$defs/N", "$defs": DEFS}, ['{"n":1,"next":{"n":2}}'], ['{"n":1,"next":{}}']),
    ({"$ref": "#/definitions/a%20b", "definitions": {"a b": INT}}, ["1"], ['"x"']),
    (
        {"$id": "http://x.org/s", "$ref": "t#/$defs/u", "$defs": {"t": {"$id": "t", "$defs": {"u": INT}}}},
        ["1"],
        ['"x"'],
    ),
    ({"$ref": "#here", "$defs": {"t": {"$anchor": "here", **INT}}}, ["1"], ['"x"']),
    ({"$ref": "#here", "$defs": {"t": {"$dynamicAnchor": "here", **INT}}}, ["1"], ['"x"']),
    (
        {"$dynamicAnchor": "node", **obj(v=INT), "properties": {"v": INT, "next": {"$dynamicRef": "#node"}}},
        ['{"v":1}', '{"v":1,"next":{"v":2,"next":{"v":3}}}'],
        ['{"v":1,"next":{}}', '{"v":1,"next":{"v":2,"next":{"v":"x"}}}'],
    ),
    (
        {**obj(v=INT), "properties": {"v": INT, "self": {"$ref": "#"}}},
        ['{"v":1,"self":{"v":2}}'],
        ['{"v":1,"self":{}}'],
    ),
    # Names of properties.
    (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INT},
        ['{"a":1}', '{"a":1,"b":2}'],
        ['{"c":1}', '{"a":1,"a":2}'],
    ),
    ({"type": "object", "propertyNames": {"pattern": "^x"}, "additionalProperties": INT}, ['{"x1":1}'], ['{"y":1}']),
    (
        {
            "type": "object",
            "patternProperties": {"a": STRING, "^b": {"maxLength": 1, **STRING}},
            "additionalProperties": False,
        },
        ['{"a":"xx"}', '{"b":"x"}', '{"ba":"x"}'],
        ['{"ba":"xx"}', '{"c":"x"}'],
    ),
    ({"type": "object", "properties": dict.fromkeys("abc", INT), "minProperties": 2}, ['{"a":1,"c":1}'], ['{"a":1}']),
    (
        {"type": "object", "properties": dict.fromkeys("abc", INT), "maxProperties": 1},
        ['{"b":1}', "{}"],
        ['{"a":1,"b":1}'],
    ),
    # Arrays.
    ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}, ['["b","a"]', "[]"], ['["a","a"]']),
    ({"type": "array", "items": STRING, "uniqueItems": True}, ['["a"]'], ["[1]"]),
    ({"type": "array", "contains": {"const": 5}}, ["[5]", "[5,1]"], ["[]", "[1]"]),
    ({"type": "array", "prefixItems": [INT, STRING], "items": False, "minItems": 2}, ['[1,"a"]'], ["[1]", '[1,"a",1]']),
    ({"type": "array", "items": [INT], "additionalItems": STRING}, ['[1,"a"]'], ["[1,1]"]),
    ({"type": "array", "items": INT, "maxItems": 2**31 - 1}, ["[1,2]"], ['["a"]']),
    # Values.
    ({"enum": [None, True, 1.5, "a", [1], {"a": 1}]}, ["null", "true", "1.5", '"a"', "[1]", '{"a":1}'], ["2", "false"]),
    ({"const": {"a": [1, None]}}, ['{"a":[1,null]}'], ['{"a":[1]}']),
    ({"type": ["integer", "null"], "minimum": 3}, ["3", "null"], ["2"]),
    (True, ["1", '{"a":[]}'], []),
]


@pytest.mark.parametrize(("schema", "good", "bad"), TABLE, ids=lambda value: str(value)[:60])
def test_what_a_schema_accepts(schema: Schema, good: list[str], bad: list[str]) -> None:
    grammar = grammar_spec_of(schema)
    assert {text: accepts(grammar, text) for text in good + bad} == {
        **dict.fromkeys(good, True),
        **dict.fromkeys(bad, False),
    }


def test_objects_are_open_on_request() -> None:
    grammar = grammar_spec_of(obj(a=INT), open_objects=True)
    assert accepts(grammar, '{"a":1,"b":[{"c":1}]}')
    assert not accepts(grammar, '{"a":1,"a":1}')
    assert accepts(grammar_spec_of({"properties": {"a": INT}}, open_objects=True), "5")


def test_white_space_is_allowed_on_request() -> None:
    assert accepts(grammar_spec_of(obj(a=INT), whitespace="any"), '{ "a" :\n1}')


def test_no_white_space_is_allowed_on_request() -> None:
    compact = grammar_spec_of(obj(a=INT), whitespace="compact")
    assert accepts(compact, '{"a":1}')
    assert not accepts(compact, '{"a": 1}')


REFUSED: list[tuple[Schema, str, str]] = [
    (
        {
            "$dynamicAnchor": "n",
            "items": {"$dynamicRef": "#n"},
            "$defs": {"a": {"$id": "http://x/a", "$dynamicAnchor": "n"}},
        },
        "/items/$dynamicRef",
        "'#n' is a '.dynamicAnchor' of several schemas",
    ),
    ({"items": {"$dynamicRef": "#n"}}, "/items/$dynamicRef", "there is no '#n' in the schema"),
    (
        {"$dynamicAnchor": "n", "type": "object", "propertyNames": {"$dynamicRef": "#n"}},
        "/propertyNames/$dynamicRef",
        "'.dynamicRef' of names is not served",
    ),
    ({"type": "objct"}, "/type", "'objct' is not a type"),
    (obj(a={"type": "string", "pattern": r"(x)\1"}), "/properties/a/pattern", "backreferences"),
    (obj(**{"a/b~": {"pattern": 5}}), "/properties/a~1b~0/pattern", "not a pattern"),
    ({"$ref": "http://x.org/y"}, "/$ref", "not in the schema"),
    ({"$ref": "#/$defs/x"}, "/$ref", "there is no"),
    ({"$ref": "#"}, "/$ref", "without end"),
    ({"items": [{"minimum": "1"}]}, "/items/0/minimum", "not a number"),
    ({**INT, "minimum": 5, "maximum": 4}, "/minimum", "no number is in the bounds"),
    ({**INT, "minimum": 10**19}, "/minimum", "no integer that is served"),
    ({"const": 2**60}, "/const", "beyond the integers"),
    ({"enum": []}, "/enum", "not a list of values"),
    ({"anyOf": [{"type": "array", "contains": INT, "maxContains": 2}]}, "/anyOf/0/maxContains", "not served"),
    ({**STRING, "not": {"format": "date"}}, "/not/format", "negation"),
    ({**INT, "multipleOf": 0}, "/multipleOf", "not above 0"),
    ({**INT, "multipleOf": 20011}, "/multipleOf", "least common multiple"),
    (obj(a={"type": "array", "minItems": 10**9}), "/properties/a/minItems", "too many"),
    (obj(a={"allOf": [INT, STRING]}), "/properties/a", "incompatible types"),
    ({"type": "object", "properties": []}, "/properties", "not an object"),
    ({"properties": {"a": 5}}, "/properties/a", "an object or a boolean"),
    ({"required": "a"}, "/required", "not a list of names"),
    ({"oneOf": [{"required": 5}, {"required": ["a"]}]}, "/oneOf/0/required", "not a list of names"),
    ({"oneOf": [{"required": [["a"]]}, {"required": ["b"]}]}, "/oneOf/0/required", "not a list of names"),
    ({"type": "string", "minLength": -1}, "/minLength", "not a count"),
    (False, "", "nothing fits it"),
]


@pytest.mark.parametrize(("schema", "pointer", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_followed_is_refused_by_its_pointer(schema: Schema, pointer: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as refusal:
        grammar_spec_of(schema)
    assert str(refusal.value).startswith(f"at {pointer}: " if pointer else reason)


def test_references_that_would_multiply_stay_small() -> None:
    twice = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    grammar = grammar_spec_of({"$ref": "#/$defs/d0", "$defs": {**twice, "d40": INT}})
    assert len(grammar.spec) < 10_000


def test_the_grammar_of_an_older_router_is_still_followed() -> None:
    assert accepts(GrammarSpec("json", '{"type":"object","properties":{"a":{"type":"integer"}}}'), '{ "a": 1, "b": 2}')


def test_an_older_worker_can_follow_the_grammar() -> None:
    """It gives llguidance the schema with white space of its own."""
    from llguidance import LLMatcher

    from tests.support.router.schema_sampling import TOKENIZER

    grammar = LLMatcher.grammar_from_json_schema(
        grammar_spec_of(obj(a=INT)).spec, overrides={"whitespace_pattern": r"[ ]{1,16}"}
    )
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    data = list(b'{"a":1}')
    assert matcher.try_consume_tokens(data) == len(data)
    assert matcher.is_accepting()


def test_what_is_no_json_is_refused() -> None:
    from slipstream.router.protocol.grammar import DEFAULT_JSON

    for text in ("{", "[" * 2000, '{"const": "\\ud800"}', "5"):
        with pytest.raises(GrammarError):
            grammar_of(json_grammar_spec(text, DEFAULT_JSON))
