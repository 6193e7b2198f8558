"""The grammars of requests with tools: tried tool by tool, remembered, and never a reason to fail that need not be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from slipstream.router.api.openai.body.structured_output import RequestGrammars
from slipstream.router.api.openai.body.tool_grammars import RequestTool, ToolGrammars
from slipstream.router.http.http_error import HttpError
from slipstream.router.parsers.formats.registry import FORMATS
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens
from slipstream.router.protocol.grammar import DEFAULT_JSON, JsonStyle
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.protocol.phased_grammar import PhasedGrammar
from slipstream.router.structured_output.bounded_cache import BYTES_OF_ENTRY, BoundedCache
from slipstream.router.structured_output.grammar_trial import GrammarTrials, GrammarVerdict

HERMES = FORMATS["hermes"]
MARKERS = MarkerTokens(plain={"<tool_call>": 300, "</tool_call>": 301})
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TRIALS = GrammarTrials()  # one process for all tests
ODD: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?<=a)\\1"}}}


class CountingGrammars(RequestGrammars):
    """Counts what is tried, and refuses grammars of outputs that are too long."""

    def __init__(self, max_output: int = 1 << 30) -> None:
        super().__init__(TRIALS)
        self.asked: list[str] = []
        self._max_output = max_output

    async def verdict(self, grammar: GrammarSpec, style: JsonStyle = DEFAULT_JSON) -> GrammarVerdict:
        self.asked.append(grammar.kind)
        if grammar.kind == "output" and len(grammar.spec) > self._max_output:
            return GrammarVerdict(None, "too large")
        return await super().verdict(grammar, style)


def tool(number: int, parameters: Any, is_strict: bool = False) -> RequestTool:
    return RequestTool(f"tool_{number}", parameters, f"tools.{number}.function.parameters", is_strict)


def lark_of(spec: GrammarSpec | None) -> str:
    assert spec is not None
    (grammar,) = (phase.grammar for phase in PhasedGrammar.of(spec.spec).phases if phase.grammar is not None)
    return grammar


def ask(grammars: RequestGrammars, *requests: Sequence[RequestTool], choice: Any = "auto") -> list[GrammarSpec | None]:
    async def run() -> list[GrammarSpec | None]:
        of_tools = ToolGrammars(grammars)
        return [await of_tools.of(HERMES, MARKERS, tools, choice) for tools in requests]

    return asyncio.run(run())


def test_what_is_known_is_not_tried_again() -> None:
    grammars = CountingGrammars()
    tools = [tool(0, CITY), tool(1, None), tool(2, {"type": "object"})]
    first, second, fewer = ask(grammars, tools, tools, tools[:1])
    assert first == second
    assert fewer != first
    assert grammars.asked == ["json"] * 3 + ["output"] * 2
    assert "tool_1" in lark_of(first)


def test_a_schema_that_cannot_be_followed_fails_only_where_it_must() -> None:
    with pytest.raises(HttpError) as raised:
        ask(RequestGrammars(TRIALS), [tool(0, CITY), tool(1, ODD, is_strict=True)])
    assert raised.value.status == 400
    assert raised.value.param == "tools.1.function.parameters"
    assert "/properties/x/pattern" in str(raised.value)
    for choice in ("auto", "required"):
        (served,) = ask(RequestGrammars(TRIALS), [tool(0, CITY), tool(1, ODD)], choice=choice)
        lark = lark_of(served)
        assert "tool_1" in lark
        assert '"city"' in lark


HUGE = {"type": "object", "properties": {"n": {"type": "integer", "const": 10**400}}}


@pytest.mark.parametrize(
    "parameters", [{"type": "string"}, {"type": "object", "minProperties": "x"}, {"$ref": "#/no"}, HUGE]
)
def test_a_tool_with_odd_parameters_takes_any_object(parameters: Any) -> None:
    (served,) = ask(RequestGrammars(TRIALS), [tool(0, parameters)])
    assert '"maxProperties":256' in lark_of(served)
    with pytest.raises(HttpError, match=r"tools\.0\.function\.parameters"):
        ask(RequestGrammars(TRIALS), [tool(0, parameters, is_strict=True)])


def test_parameters_are_those_of_openai_where_they_are_missing() -> None:
    for parameters, is_free in ((None, False), ({}, True), ({"type": ["object", "null"]}, True)):
        (served,) = ask(RequestGrammars(TRIALS), [tool(0, parameters)])
        assert ('"maxProperties":256' in lark_of(served)) == is_free
        assert ('"properties":{},"additionalProperties":false' in lark_of(served)) != is_free


def test_tools_that_are_too_much_together_take_any_objects() -> None:
    properties = {f"property_{number}": {"enum": [f"{'x' * 30}{number}"]} for number in range(80)}
    tools = [tool(number, {"type": "object", "properties": properties}) for number in range(4)]
    (loose,) = ask(CountingGrammars(max_output=6000), tools)
    assert "tool_3" in lark_of(loose)
    assert "property_1" not in lark_of(loose)
    assert ask(CountingGrammars(max_output=10), tools) == [None]
    with pytest.raises(HttpError, match="'tools' cannot be followed"):
        ask(CountingGrammars(max_output=6000), [*tools, tool(9, CITY, is_strict=True)])


def test_what_a_remembered_grammar_was_made_from_counts_also_if_there_is_none() -> None:
    async def run() -> None:
        of_tools = ToolGrammars(CountingGrammars(max_output=0))
        assert await of_tools.of(HERMES, MARKERS, [tool(0, {**CITY, "description": "x" * 5000})], "auto") is None
        assert of_tools._outputs.num_bytes > 5000

    asyncio.run(run())


@pytest.mark.parametrize(("name", "num_properties"), [("qwen3_coder", 400), ("gemma4", 1)])
def test_parameters_whose_grammar_is_too_large_or_too_deep_take_any_object(name: str, num_properties: int) -> None:
    chain = {
        f"d{i}": {"type": "object", "properties": {"n": {"$ref": f"#/$defs/d{(i + 1) % 400}"}}} for i in range(400)
    }
    one = {"$ref": "#/$defs/d0"}
    properties = {f"p{i}": {"anyOf": [one, {"type": "integer", "maximum": i}]} for i in range(num_properties)}
    schema = {"type": "object", "properties": properties, "$defs": chain}

    async def run() -> None:
        served = await ToolGrammars(CountingGrammars()).of(FORMATS[name], MarkerTokens(), [tool(0, schema)], "auto")
        assert "tool_0" in lark_of(served)
        assert "p0" not in lark_of(served)

    asyncio.run(run())


def test_a_whole_grammar_is_tried_with_its_special_tokens() -> None:
    grammars = RequestGrammars(TRIALS)
    good = PhasedGrammar.of((ask(grammars, [tool(0, CITY)])[0] or GrammarSpec("output", "")).spec)
    assert good.phases[1].grammar is not None
    bad = good._replace(phases=(good.phases[0], good.phases[1]._replace(grammar="start: <[300]> missing")))
    final, fault = asyncio.run(grammars.verdict(bad.spec()))
    assert final is None
    assert "missing" in (fault or "")


def test_a_cache_keeps_to_its_bytes() -> None:
    cache: BoundedCache[int, str] = BoundedCache(4 * (BYTES_OF_ENTRY + 100))
    for number in range(10):
        cache.put(number, json.dumps(number), 100)
        cache.get(6)
    assert len(cache) == 4
    assert [number for number in range(10) if cache.get(number)] == [6, 7, 8, 9]
    cache.put(10, "large", 1 << 20)
    assert (len(cache), cache.get(10)) == (1, "large")
    cache.put(11, "small", 1)
    assert (len(cache), cache.num_bytes) == (1, BYTES_OF_ENTRY + 1)
