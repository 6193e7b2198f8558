"""The grammars of outputs: what they let through is read as valid calls, and what models write gets through."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from slipstream.router.parsers.description.elements import PythonArguments
from slipstream.router.parsers.description.output_format import OutputFormat
from slipstream.router.parsers.formats.registry import FORMATS
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens
from slipstream.router.parsers.grammar.output_grammar import CallChoice, ReasoningState, output_grammar
from slipstream.router.parsers.grammar.tool_grammar import ToolGrammar
from slipstream.router.protocol.grammar import grammar_of_phase, parser_limits
from slipstream.router.protocol.messages import GrammarSpec
from slipstream.router.protocol.phased_grammar import PhasedGrammar
from slipstream.router.structured_output.byte_tokenizer import NUM_BYTES
from slipstream.workers.engine.structured_output.phased_matcher import PhasedMatcher
from slipstream.workers.engine.structured_output.token_bytes import TokenBytes
from slipstream.workers.engine.structured_output.trigger_scanner import OutputShape, TriggerScanner
from tests.support.router.call_walks import CallWalker, check_calls, grammar_of_tool
from tests.support.router.output_writer import DISTINCT_FORMATS, Call, written
from tests.support.router.tool_schemas import ToolSchema, tool_schemas

FORMATS_WITH_CALLS = sorted(
    (form for form in DISTINCT_FORMATS if form.calls or form.channels), key=lambda form: form.name
)
# With the format's tags as special tokens of the vocabulary, and as text. Channels have only tokens.
EVERY_FORMAT = pytest.mark.parametrize(
    ("form", "is_special"),
    [(form, is_special) for form in FORMATS_WITH_CALLS for is_special in (True, False) if is_special or form.calls],
    ids=lambda value: ("text", "tokens")[value] if isinstance(value, bool) else value.name,
)
TOOLS = tool_schemas()
NUM_SAMPLED = 4
WEATHER = ToolSchema(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "places": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
            "note": {"type": ["string", "null"]},
        },
        "required": ["city"],
    },
    "simple",
)
NOW = ToolSchema("now", {"type": "object", "properties": {}}, "empty")
CALLS = [
    Call("get_weather", {"city": "Köln", "days": 3, "exact": True, "places": [{"x": 1.5}], "note": "a\nb"}),
    Call("now", {}),
    Call("get_weather", {"city": "x </b> y", "note": None}),
]
AUTO: CallChoice = "auto"
REQUIRED: CallChoice = "required"
SCHEMA = GrammarSpec("json", json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "x-guidance": {}}))


@EVERY_FORMAT
def test_whatever_the_grammar_lets_through_is_a_valid_call(form: OutputFormat, is_special: bool) -> None:
    """`scripts/bench/router/bench_tool_grammars.py` does this for all tools."""
    walker = CallWalker.of(form, is_special)
    first = FORMATS_WITH_CALLS.index(form)
    tools = [TOOLS[(first + 31 * number) % len(TOOLS)] for number in range(NUM_SAMPLED)]
    num_calls = 0
    for seed, tool in enumerate(tools):
        drawn = walker.draw(walker.matcher([grammar_of_tool(tool)]), seed)
        if drawn is not None:
            answer = walker.read(drawn, [tool])
            check_calls(answer, [tool])
            num_calls += len(answer.calls)
    assert num_calls >= NUM_SAMPLED // 2
    together = walker.matcher([grammar_of_tool(tool) for tool in tools])
    for seed in range(2):
        drawn = walker.draw(together, seed)
        if drawn is not None:
            check_calls(walker.read(drawn, tools), tools)


@EVERY_FORMAT
def test_what_models_write_gets_through(form: OutputFormat, is_special: bool) -> None:
    walker = CallWalker.of(form, is_special)
    calls = CALLS[:1] if form.channels is not None else CALLS
    if form.calls is not None and any(isinstance(element, PythonArguments) for element in form.calls.call):
        # Within values the grammar has JSON's quotes only.
        calls = [
            Call(call.name, {key: value for key, value in call.arguments.items() if key != "places"}) for call in calls
        ]
    at_start = form.calls is not None and form.calls.only_at_start
    content = "" if at_start else "Let me see."
    for reasoning in ("Think <b> first.", "") if form.reasoning or form.channels else ("",):
        for before in (content, "") if form.channels is None else ("",):
            text = written(form, reasoning, before, calls)
            for choice, state in choices(bool(reasoning)):
                if choice == "required" and before:
                    continue
                follower = follow(walker, text, choice, state, [WEATHER, NOW])
                assert follower.restricts, text
                assert ends(follower, walker), text


def choices(has_reasoning: bool) -> list[tuple[CallChoice, ReasoningState]]:
    if has_reasoning:
        return [("auto", "possible"), ("required", "possible")]
    return [("auto", "possible"), ("auto", "over"), ("required", "over"), ("required", "possible")]


def follow(
    walker: CallWalker, text: str, choice: CallChoice, reasoning: ReasoningState, tools: Sequence[ToolSchema]
) -> PhasedMatcher:
    """A sequence with this output."""
    spec = output_grammar(
        walker.form,
        walker.markers,
        tools=[grammar_of_tool(tool) for tool in tools],
        choice=choice,
        reasoning=reasoning,
    )
    assert spec is not None
    return following(walker, spec, text)


def following(walker: CallWalker, spec: GrammarSpec, text: str) -> PhasedMatcher:
    phased = PhasedGrammar.of(spec.spec)
    plain = {token_id: text.encode() for text, token_id in walker.markers.plain.items()}
    tokens = TokenBytes([bytes([i]) if i < NUM_BYTES else plain.get(i, b"") for i in range(walker.eos + 1)])
    compiled = {
        number: ready(
            LLMatcher(
                walker.tokenizer,
                grammar_of_phase(phase),
                log_level=0,
                limits=parser_limits(),
            )
        )
        for number, phase in enumerate(phased.phases)
        if phase.grammar is not None
    }
    output = walker.tokenizer.tokenize_str(text)
    return PhasedMatcher(
        phased,
        ready(TriggerScanner(OutputShape.of(phased), tokens)),
        compiled,
        walker.tokenizer.tokenize_bytes,
        [walker.eos],
        array("i", [0, *output]),
        1,
        is_waited_for=True,
    )


def ready(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def ends(follower: PhasedMatcher, walker: CallWalker) -> bool:
    """Whether the output may end here; not so if it has left the grammar."""
    mask = np.empty(-(-(walker.eos + 1) // 8), np.uint8)
    follower.write_allowed(mask)
    return follower.restricts and bool(mask[walker.eos >> 3] >> (walker.eos & 7) & 1)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45"])
def test_markers_may_be_tokens_that_are_text(name: str) -> None:
    """As `<tool_call>` in Qwen's vocabulary, which is no special token there, but one to llguidance."""
    walker = CallWalker.of(FORMATS[name], is_special=True, is_plain=True)
    tools = TOOLS[:8]
    for seed, tool in enumerate(tools):
        drawn = walker.draw(walker.matcher([grammar_of_tool(tool)]), seed)
        assert drawn is not None
        assert max(drawn) >= NUM_BYTES
        check_calls(walker.read(drawn, [tool]), [tool])
    calls = written(walker.form, calls=CALLS[:2])
    for choice, text in ((AUTO, f"Let me <tool_ see.{calls}"), (REQUIRED, calls)):
        follower = follow(walker, text, choice, "over", [WEATHER, NOW])
        assert follower.restricts
        assert ends(follower, walker)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "deepseek_v31", "openai", "gemma4", "llama3_json"])
def test_no_more_calls_than_are_asked_for(name: str) -> None:
    form = FORMATS[name]
    walker = CallWalker.of(form, True)
    for seed in range(6):
        drawn = walker.draw(walker.matcher([grammar_of_tool(NOW)], is_parallel=False), seed)
        assert drawn is not None
        assert len(walker.read(drawn, [NOW]).calls) == 1


def test_content_beside_tools_is_a_call_or_what_it_has_to_be() -> None:
    walker = CallWalker.of(FORMATS["hermes"], True)
    spec = output_grammar(walker.form, walker.markers, tools=[grammar_of_tool(NOW)], choice="auto", content=SCHEMA)
    assert spec is not None
    for text in ('{"n": 5}', written(walker.form, calls=CALLS[1:2])):
        assert ends(following(walker, spec, text), walker)
    assert not ends(following(walker, spec, "Hello"), walker)


@pytest.mark.parametrize("is_special", [True, False])
def test_content_follows_its_grammar_behind_reasoning(is_special: bool) -> None:
    form = FORMATS["qwen3"]
    walker = CallWalker.of(form, is_special)
    answer = '{"n": 5}'
    texts: dict[ReasoningState, list[str]] = {
        "begun": [f"I {{think}}.</think>\n\n{answer}"],
        "possible": [f"<think>I {{think}}.</think>\n\n{answer}", answer],
        "over": [answer],
    }
    for reasoning, outputs in texts.items():
        spec = output_grammar(form, walker.markers, content=SCHEMA, reasoning=reasoning)
        assert spec is not None
        if reasoning == "over":
            assert spec is SCHEMA
            continue
        for text in outputs:
            assert ends(following(walker, spec, text), walker)
        within = following(walker, spec, texts[reasoning][0][:12])
        assert not ends(within, walker)  # no end within reasoning


@pytest.mark.parametrize("kind", ["regex", "choice", "grammar"])
def test_every_kind_of_grammar_can_stand_behind_reasoning(kind: Any) -> None:
    content = {"regex": "[0-9]+", "choice": '["17", "no"]', "grammar": 'start: x\nx: "1" "7"'}[kind]
    walker = CallWalker.of(FORMATS["qwen3"], True)
    spec = output_grammar(walker.form, walker.markers, content=GrammarSpec(kind, content), reasoning="begun")
    assert spec is not None
    assert ends(following(walker, spec, "Hm.</think>17"), walker)


def test_a_prompt_may_end_within_a_message_of_reasoning() -> None:
    walker = CallWalker.of(FORMATS["openai"], True)
    tools = [grammar_of_tool(NOW)]
    call = written(walker.form, calls=CALLS[1:2])
    for choice in (AUTO, REQUIRED):
        spec = output_grammar(walker.form, walker.markers, tools=tools, choice=choice, reasoning="begun")
        assert spec is not None
        within = following(walker, spec, "They speak to=functions.now")
        assert within.restricts == (choice == REQUIRED)  # it may not end there
        assert ends(following(walker, spec, f"Hm.<|end|><|start|>assistant{call}"), walker)


def test_nothing_is_asked_of_an_output_without_tools_or_content() -> None:
    walker = CallWalker.of(FORMATS["hermes"], True)
    tool = grammar_of_tool(NOW)
    assert output_grammar(walker.form, walker.markers, tools=[tool], choice="none") is None
    assert output_grammar(FORMATS["qwen3"], walker.markers, tools=[tool], choice="auto", reasoning="begun") is None
    assert output_grammar(None, MarkerTokens(), content=SCHEMA, reasoning="possible") is SCHEMA


def test_content_that_only_looks_like_a_call_is_free() -> None:
    """In formats without a marker a call begins with the name of a tool, in any white space."""
    for name, other, call in (
        ("llama3_json", '{"name": "Anna", "age": 5}', '{\n "name" : "now", "parameters": {}}'),
        ("pythonic", "[x for x in y]", "[ now( )]"),
    ):
        walker = CallWalker.of(FORMATS[name], True)
        assert not follow(walker, other, "auto", "over", [NOW]).restricts
        assert not follow(walker, f"Look: {call}", "auto", "over", [NOW]).restricts
        assert ends(follow(walker, call, "auto", "over", [NOW]), walker)


def test_a_tool_without_a_schema_takes_any_object() -> None:
    for name in ("hermes", "qwen3_coder", "gemma4", "pythonic"):
        walker = CallWalker.of(FORMATS[name], True)
        tool = ToolSchema("odd", {"type": "object"}, "open")
        for seed in range(4):
            drawn = walker.draw(walker.matcher([ToolGrammar("odd")]), seed)
            if drawn is not None:
                check_calls(walker.read(drawn, [tool]), [tool])
