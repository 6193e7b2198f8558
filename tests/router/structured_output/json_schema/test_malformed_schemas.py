"""Schemas that are not schemas: a refusal by a pointer into them, whatever they are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.router.protocol.grammar import DEFAULT_JSON, GrammarError, JsonStyle
from slipstream.router.structured_output.json_grammar import json_grammar_spec
from slipstream.router.structured_output.json_schema.document import Document
from slipstream.router.structured_output.json_schema.keywords import ASKING, OF_NUMBERS

KEYS = st.sampled_from(sorted(ASKING | {"a", "$defs", "$id", "$anchor", "title"}))
SCALARS = st.sampled_from(
    [None, True, False, 0, 1, -1, 2.5, 10**25, 1e308, "", "a", "object", "#", "#/$defs/a", "^(a", "integer"]
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(ANYTHING)
def test_anything_gets_a_verdict(value: Any) -> None:
    fault = fault_of(value)
    if fault is not None and fault.startswith("at "):
        assert Document(value).has(fault.removeprefix("at ").partition(": ")[0]), fault


UNPAIRED = r"\ud800"
HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (f'{{"enum":["{UNPAIRED}"]}}', "/enum/0"),
        (f'{{"const":{{"a":"{UNPAIRED}"}}}}', "/const/a"),
        (f'{{"default":"{UNPAIRED}"}}', "/default"),
        (f'{{"pattern":"{UNPAIRED}"}}', "/pattern"),
        (f'{{"required":["a","{UNPAIRED}"]}}', "/required/1"),
        (f'{{"properties":{{"{UNPAIRED}":{{}}}}}}', "/properties"),
        (f'{{"const":{{"{UNPAIRED}":1}}}}', "/const"),
        (f'{{"$ref":"#/$defs/{UNPAIRED}"}}', "/$ref"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_where_it_is(schema: str, pointer: str) -> None:
    with pytest.raises(GrammarError, match=f"^at {re.escape(pointer)}: it has half of a surrogate pair") as caught:
        json_grammar_spec(schema, DEFAULT_JSON)
    assert str(caught.value).encode()


@pytest.mark.parametrize("key", ["enum", "const", "default", "items", "not"])
@pytest.mark.parametrize("depth", [120, 400, 900])
def test_what_is_nested_too_deeply_is_refused_where_it_begins(key: str, depth: int) -> None:
    schema = f'{{"{key}":[' + '{"a":' * depth + "1" + "}" * depth + "]}"
    with pytest.raises(GrammarError, match=f"^at /{key}/0/a: it is nested more than 100 deep"):
        json_grammar_spec(schema, DEFAULT_JSON)


@pytest.mark.parametrize("value", [HUGE, "-" + HUGE, "1e400", "1" + "0" * 5000])
@pytest.mark.parametrize(
    "key",
    [*sorted(OF_NUMBERS), "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "const"],
)
@pytest.mark.parametrize("style", [DEFAULT_JSON, JsonStyle("any", True)])
def test_a_number_beyond_doubles_is_refused_where_it_is(key: str, value: str, style: JsonStyle) -> None:
    with pytest.raises(GrammarError, match=f"^at /{key}: -?[0-9inf]+ is beyond"):
        json_grammar_spec(f'{{"{key}":{value}}}', style)
    with pytest.raises(GrammarError, match=r"^at /default.* is beyond"):
        json_grammar_spec(f'{{"$ref":"#/default","default":{{"{key}":{value}}}}}', style)
    assert json_grammar_spec(f'{{"type":"string","default":{value}}}', style)


def test_a_schema_that_is_too_deep_to_be_read_is_refused() -> None:
    with pytest.raises(GrammarError, match=r"^it is nested too deeply$"):
        json_grammar_spec('{"items":' * 10_000 + "{}" + "}" * 10_000, DEFAULT_JSON)
    chain = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}], "minProperties": 0} for n in range(900)}
    with pytest.raises(GrammarError, match=r"^it is nested too deeply$"):
        json_grammar_spec(
            json.dumps({"$ref": "#/$defs/a0", "$defs": {**chain, "a900": {"type": "object"}}}), DEFAULT_JSON
        )


@pytest.mark.parametrize("key", ["$id", "$ref", "$dynamicRef"])
def test_what_is_no_uri_is_refused_where_it_is(key: str) -> None:
    assert (fault_of({key: "http://[::1"}) or "").startswith(f"at /{key}: 'http://[::1' is not a URI")


TOO_INTRICATE: dict[str, Any] = {
    "type": "string",
    "format": "email",
    "pattern": r"@example\.com$",
    "maxLength": 30,
}


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (TOO_INTRICATE, "/pattern"),
        ({"type": "object", "properties": {"a": TOO_INTRICATE}}, "/properties/a/pattern"),
        ({"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": TOO_INTRICATE}}, "/$defs/a/pattern"),
    ],
)
def test_a_pattern_that_is_too_complex_with_the_format_is_refused_where_it_is(schema: Any, pointer: str) -> None:
    assert (fault_of(schema) or "").startswith(f"at {pointer}: it is too complex: ")


def fault_of(value: Any) -> str | None:
    try:
        json_grammar_spec(json.dumps(value), DEFAULT_JSON)
    except GrammarError as error:
        return str(error)
    return None
