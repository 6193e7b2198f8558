"""Outputs in the formats whose calls are JSON objects with name and arguments."""

from __future__ import annotations

import pytest

from tests.support.router.output_writer import read

WEATHER = '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, {"n": 2}]}}'
WEATHER_CALL = ("get_weather", '{"city": "Zürich", "days": [1, {"n": 2}]}')
TIME = '{"name": "get_time", "arguments": {}}'
TIME_CALL = ("get_time", "{}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{TIME}\n</tool_call>"),
        ("hermes", f"\n\n<tool_call>{WEATHER}</tool_call><tool_call> {TIME}"),
        ("longcat", f"<longcat_tool_call>{WEATHER}</longcat_tool_call>\n<longcat_tool_call>{TIME}</longcat_tool_call>"),
        ("slipstream-demo", f"<|tool_call|>{WEATHER}<|tool_call|>{TIME}"),
        ("llama3_json", f"{WEATHER}; {TIME}".replace("arguments", "parameters")),
        ("llama3_json", f"<|python_tag|>{WEATHER};{TIME}"),
        ("mistral_list", f"[TOOL_CALLS] [{WEATHER}, {TIME}]"),
        ("mistral_list", f"[TOOL_CALLS][{WEATHER},\n {TIME}]"),
        ("granite", f"<|tool_call|>[{WEATHER}, {TIME}]"),
        ("granite", f"<tool_call>[{WEATHER}, {TIME}]"),
        ("phi4_mini_json", f"functools[{WEATHER}, {TIME}]"),
        ("phi4_mini_json", f"<|tool_call|>[{WEATHER}, {TIME}]<|/tool_call|>"),
        ("jamba", f"<tool_calls>[{WEATHER}, {TIME}]</tool_calls>"),
        ("nemotron_json", f"<TOOLCALL>[{WEATHER}, {TIME}]</TOOLCALL>"),
    ],
)
def test_several_calls(name: str, text: str) -> None:
    answer = read(name, text)
    assert answer.calls == [WEATHER_CALL, TIME_CALL]
    assert (answer.content, answer.reasoning) == ("", "")


def test_content_stands_before_calls_and_behind_them() -> None:
    answer = read("hermes", f"I look it up.\n\n<tool_call>\n{WEATHER}\n</tool_call>\nDone.\n")
    assert answer.content == "I look it up.\nDone.\n"
    assert answer.calls == [WEATHER_CALL]


def test_arguments_may_be_named_parameters_and_stand_before_the_name() -> None:
    text = '<tool_call>{"id": "7", "parameters": {"a": "}"}, "name": "f"}</tool_call>'
    answer = read("hermes", text)
    assert answer.calls == [("f", '{"a": "}"}')]
    assert answer.call_ids == ["7"]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    assert read("hermes", '<tool_call>{"name": "f"}</tool_call>').calls == [("f", "{}")]
    assert read("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>').calls == [("f", "{}")]


def test_arguments_that_are_encoded_twice_are_decoded() -> None:
    text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}</tool_call>'
    assert read("hermes", text).calls == [("f", '{"a": "é"}')]


def test_arguments_go_out_as_they_were_written() -> None:
    arguments = '{ "a":1.50,\n "b" : "\\u00e9</tool_call>" , "c":[ ] }'
    assert read("hermes", f'<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>').calls == [("f", arguments)]


@pytest.mark.parametrize(
    "text",
    [
        "The tag is <tool_call>, in short.",
        '<tool_call>\n{"city": "Bern"}\n</tool_call>',
        '<tool_call>\n{"name": 5}\n</tool_call>',
        "<tool_call>\n[1]",
        "<tool_ca",
        "a < b > c",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    answer = read("hermes", text, special=False)
    assert (answer.content, answer.calls) == (text, [])


def test_special_tokens_of_what_is_no_call_are_not_shown() -> None:
    assert read("hermes", "The tag is <tool_call>, in short.", special=True).content == "The tag is , in short."


def test_a_call_that_is_cut_off_before_its_arguments_is_nothing() -> None:
    for cut in range(1, WEATHER.index("{", 1)):
        begun = read("hermes", f"Yes. <tool_call>\n{WEATHER[:cut]}")
        assert (begun.content, begun.calls) == ("Yes.", [])


def test_a_marker_at_the_end_is_content_unless_it_is_a_special_token() -> None:
    assert read("hermes", "Write <tool_call>\n", special=False).content == "Write <tool_call>\n"
    assert read("hermes", "Write <tool_call>", special=True).content == "Write"


def test_a_call_that_is_cut_off_keeps_its_arguments() -> None:
    text = f"<tool_call>{TIME}</tool_call><tool_call>{WEATHER}"
    assert read("hermes", text[: text.index("1, ")]).calls == [
        TIME_CALL,
        (WEATHER_CALL[0], '{"city": "Zürich", "days": ['),
    ]
    assert read("hermes", text[: text.index("}</")]).calls == [TIME_CALL]


def test_a_closing_tag_that_is_missing_or_too_much_is_no_content() -> None:
    assert read("hermes", f"<tool_call>{WEATHER}").calls == [WEATHER_CALL]
    answer = read("hermes", f"<tool_call>{WEATHER}</tool_call></tool_call>")
    assert (answer.content, answer.calls) == ("", [WEATHER_CALL])


def test_json_at_the_beginning_is_a_call_only_of_a_function_that_the_request_has() -> None:
    text = '{"name": "Ann", "parameters": {"age": 5}}'
    assert read("llama3_json", text, tools={"get_weather": {}}).content == text
    assert read("llama3_json", text, tools={"Ann": {}}).calls == [("Ann", '{"age": 5}')]
    assert read("llama3_json", '{"answer": [1, 2]}').content == '{"answer": [1, 2]}'
    assert read("llama3_json", f"See: {WEATHER}").content == f"See: {WEATHER}"


def test_an_id_before_the_arguments_is_read() -> None:
    text = '[TOOL_CALLS] [{"id": "abcdefghi", "name": "f", "arguments": {}}]'
    assert read("mistral_list", text).call_ids == ["abcdefghi"]


def test_nothing_is_read_behind_the_last_call_that_is_wanted() -> None:
    text = f"<tool_call>{TIME}</tool_call>\n<tool_call>{WEATHER}</tool_call> text"
    answer = read("hermes", text, max_calls=1)
    assert (answer.calls, answer.content) == ([TIME_CALL], "")


def test_calls_are_content_where_the_request_has_no_tools() -> None:
    text = f"x <tool_call>{TIME}</tool_call>"
    assert read("hermes", text, special=False, reads_calls=False).content == text
