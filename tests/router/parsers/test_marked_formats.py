"""Outputs in the formats with markers between name and arguments, in Python, in Gemma's dialect."""

from __future__ import annotations

import json

import pytest

from tests.support.router.output_writer import read

ARGUMENTS = '{"city": "Zürich", "days": [1, {"n": 2}]}'
CALLS = [("get_weather", ARGUMENTS), ("get_time", "{}")]

DEEPSEEK_V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    f"{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{{}}\n"
    "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
DEEPSEEK_V31 = (
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    f"{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{{}}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)
PYTHON = "[get_weather(city='Zürich', days=[1, {'n': 2}]), get_time()]"
GEMMA = (
    '<|tool_call>call:get_weather{city:<|"|>Zürich<|"|>,days:[1,{n:2}]}<tool_call|>'
    "<|tool_call>call:get_time{}<tool_call|>"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]get_time[ARGS]{{}}"),
        ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS] {ARGUMENTS} [TOOL_CALLS] get_time[ARGS] {{}}"),
        ("deepseek_v3", DEEPSEEK_V3),
        ("deepseek_v3", DEEPSEEK_V3.replace("<｜tool▁calls▁begin｜>", "")),
        ("deepseek_v31", DEEPSEEK_V31),
        ("deepseek_v31", DEEPSEEK_V31.replace("<｜tool▁calls▁end｜>", "")),
        ("kimi_k2", KIMI),
        ("kimi_k2", KIMI.replace("<|tool_call_argument_begin|>", "\n<|tool_call_argument_begin|> ")),
        ("pythonic", PYTHON),
        ("llama4_pythonic", PYTHON),
        ("llama4_pythonic", f"<|python_start|>{PYTHON}<|python_end|>"),
        ("lfm2", f"<|tool_call_start|>{PYTHON}<|tool_call_end|>"),
        ("gemma4", GEMMA),
        (
            "functiongemma",
            GEMMA.replace("<|tool_call>", "<start_function_call>")
            .replace("<tool_call|>", "<end_function_call>")
            .replace('<|"|>', "<escape>"),
        ),
    ],
)
def test_several_calls(name: str, text: str) -> None:
    answer = read(name, text)
    assert [(name, json.loads(arguments)) for name, arguments in answer.calls] == [
        (name, json.loads(arguments)) for name, arguments in CALLS
    ]
    assert (answer.content, answer.reasoning) == ("", "")


def test_ids_that_the_model_wrote() -> None:
    assert read("kimi_k2", KIMI).call_ids == ["functions.get_weather:0", "functions.get_time:1"]
    assert read("mistral", "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}").call_ids == ["abcdefghi"]


def test_content_stands_before_calls_and_behind_them() -> None:
    answer = read("deepseek_v31", f"One moment.\n{DEEPSEEK_V31}\nThat was it.")
    assert answer.content == "One moment.\nThat was it."


def test_arguments_that_break_off_at_a_marker_are_ended() -> None:
    answer = read("deepseek_v31", DEEPSEEK_V31.replace("2}]}<｜tool▁call▁end｜>", "2<｜tool▁call▁end｜>"), special=True)
    assert answer.calls == [("get_weather", ARGUMENTS.replace("2}]}", "2")), CALLS[1]]


def test_values_of_python() -> None:
    text = r"""[f("x", b='it\'s "q" \n', c=None, d=-1.5, e=(1, True), g={'k': [false]}, h=word, i='é' )]"""
    tools = {"f": {"properties": {"a": {}, "b": {}}}}
    [(_, arguments)] = read("pythonic", text, tools=tools).calls
    assert json.loads(arguments) == {
        "a": "x",
        "b": 'it\'s "q" \n',
        "c": None,
        "d": -1.5,
        "e": [1, True],
        "g": "{'k': [false]}",
        "h": "word",
        "i": "é",
    }


@pytest.mark.parametrize(
    "text", ["[1] is a source", "[see(below)] is a link", "A list: [get_time()]", "[get_time(", "["]
)
def test_a_bracket_begins_calls_only_where_content_begins_and_a_function_of_the_request_follows(text: str) -> None:
    answer = read("pythonic", text, tools={"get_time": {}})
    if text == "[get_time(":
        assert answer.calls == [("get_time", "")]
    else:
        assert (answer.content, answer.calls) == (text, [])


def test_values_of_gemma() -> None:
    text = (
        '<|tool_call>call:f{a:<|"|>x "y", {z}<|"|>, b : [ <|"|><|"|>,-2e3,true,null ],'
        '<|"|>c d<|"|>:{e:word,"f":"g\\n"}}'
    )
    [(_, arguments)] = read("gemma4", text).calls
    assert json.loads(arguments) == {
        "a": 'x "y", {z}',
        "b": ["", -2e3, True, None],
        "c d": {"e": "word", "f": "g\n"},
    }


def test_a_special_token_within_a_string_is_text() -> None:
    text = '<|tool_call>call:f{a:<|"|>the tag <tool_call|> ends<|"|>}<tool_call|>'
    assert read("gemma4", text).calls == [("f", '{"a": "the tag <tool_call|> ends"}')]


@pytest.mark.parametrize("body", ["a:[}", "a:[1}", "a:{b:]", "a:]", "]"])
def test_a_bracket_of_gemma_that_closes_nothing_open_ends_the_arguments(body: str) -> None:
    answer = read("gemma4", f"<|tool_call>call:f{{{body} rest")
    assert [name for name, _ in answer.calls] == ["f"]
    assert len(answer.calls[0][1]) < 32
