"""Parameters that are more than a list of plain names, in formats that do not write arguments as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from slipstream.router.parsers.formats.registry import FORMATS
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens
from slipstream.router.parsers.grammar.output_grammar import output_grammar
from slipstream.router.parsers.grammar.tool_grammar import ToolGrammar
from slipstream.router.parsers.readers.schema_types import types_of
from tests.support.router.call_walks import CallWalker, check_calls, grammar_of_tool
from tests.support.router.tool_schemas import ToolSchema

SHORT = {"type": "string", "maxLength": 6}
A = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"properties": {"b": SHORT}, "required": ["b"]}
NODE = {"type": "object", "properties": {"v": SHORT, "next": {"$ref": "#/$defs/Node"}}, "required": ["v"]}
UNIT = {"type": "string", "enum": ["C", "F"]}
EVERYWHERE = {
    "reference at the root": {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
    "one of two objects": {"anyOf": [{"type": "object", **A}, {"type": "object", **B}]},
    "all of two objects": {"type": "object", "allOf": [A, B]},
    "a reference with a default": {
        "type": "object",
        "properties": {"unit": {"allOf": [{"$ref": "#/$defs/Unit"}], "default": "C"}},
        "required": ["unit"],
        "$defs": {"Unit": UNIT},
    },
    "texts of other names": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": SHORT},
    "names with signs": {
        "type": "object",
        "properties": {"user-id": {"type": "integer"}, "$top": SHORT},
        "required": ["user-id", "$top"],
    },
    "lengths of texts": {
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 3}},
        "required": ["a"],
    },
    "a name that may not be there": {
        "type": "object",
        "properties": {"no": False, "n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": True,
    },
    "texts that may be empty": {
        "type": "object",
        "properties": {"a": {"enum": ["", "x"]}, "b": {"const": ""}},
        "required": ["a", "b"],
    },
    "a tuple": {
        "type": "object",
        "properties": {"p": {"type": "array", "prefixItems": [SHORT, {"type": "integer"}], "items": False}},
        "required": ["p"],
    },
}


@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4", "llama4_pythonic"])
def test_calls_with_odd_parameters_fit_them(name: str) -> None:
    walker = CallWalker.of(FORMATS[name], is_special=True)
    for parameters in EVERYWHERE.values():
        tool = ToolSchema("f", parameters, "odd")
        matcher = walker.matcher([grammar_of_tool(tool)], is_parallel=False)
        for seed in range(4):
            drawn = walker.draw(matcher, seed, soft_limit=60)
            if drawn is not None:
                check_calls(walker.read(drawn, [tool]), [tool])


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("qwen3_coder", "<function=f><parameter=n>1</parameter><parameter=", ">"),
        ("gemma4", "<|tool_call>call:f{n:1,", ":"),
        ("pythonic", "[f(n=1,", "="),
    ],
)
def test_a_free_name_is_none_that_the_schema_names(name: str, begin: str, end: str) -> None:
    """Otherwise an argument would come twice, the second time as a text."""
    walker = CallWalker.of(FORMATS[name], is_special=False)
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = ToolSchema("f", {**parameters, "additionalProperties": SHORT}, "odd")
    for key, may_end in (("n", False), ("nn", True)):
        matcher = walker.matcher([grammar_of_tool(tool)])
        matcher.consume_tokens(list((begin + key).encode()))
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        assert bool(mask[ord(end)]) == may_end


def test_names_that_a_format_cannot_write_are_left_out() -> None:
    walker = CallWalker.of(FORMATS["qwen3_coder"], is_special=False)
    odd: dict[str, Any] = {"a>b": SHORT, " c": SHORT, "d\ne": SHORT, "f": {"type": "integer"}}
    tool = ToolSchema("f", {"type": "object", "properties": odd, "required": ["f"]}, "odd")
    matcher = walker.matcher([grammar_of_tool(tool)])
    for seed in range(4):
        drawn = walker.draw(matcher, seed)
        assert drawn is not None
        check_calls(walker.read(drawn, [tool]), [tool])


@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4", "deepseek_v32", "pythonic"])
def test_schemas_that_name_each_other_many_times_are_written_once(name: str) -> None:
    """A hundred million ways lead to the constant."""
    chain = {f"A{i}": {"anyOf": [{"$ref": f"#/$defs/A{i + 1}"}] * 10} for i in range(8)}
    alike = {f"B{i}": {"allOf": [{"$ref": f"#/$defs/B{i + 1}"}] * 10} for i in range(8)}
    definitions = {**chain, "A8": {"const": "a"}, **alike, "B8": SHORT}
    properties = {"a": {"$ref": "#/$defs/A0"}, "b": {"$ref": "#/$defs/B0"}}
    schema = json.dumps({"type": "object", "properties": properties, "required": ["a", "b"], "$defs": definitions})
    form = FORMATS[name]
    assert output_grammar(form, MarkerTokens(), tools=[ToolGrammar("f", schema, schema)], choice="auto") is not None


def test_types_are_found_in_a_schema_that_names_itself_a_thousand_times() -> None:
    again = [{"$ref": "#/$defs/A"}] * 1000
    schema = {"properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"anyOf": [*again, {"type": "integer"}]}}}
    assert types_of(schema, "x") == {"integer"}
