"""Outputs in the formats whose arguments have tags of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.router.output_writer import read

TYPES: dict[str, Any] = {
    "text": {"type": "string"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "count": {"type": "integer"},
    "either": {"type": ["string", "integer"]},
    "items": {"type": "array"},
    "flag": {"type": "boolean"},
    "kind": {"enum": ["a", "b"]},
    "shape": {"$ref": "#/$defs/Shape"},
    "any": {},
}
TOOLS = {"f": {"type": "object", "properties": TYPES, "$defs": {"Shape": {"type": "object"}}}}

QWEN = (
    "Let me see.\n\n<tool_call>\n<function=f>\n<parameter=text>\n  two\nlines \n</parameter>\n<parameter=count>\n3\n"
    "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>"
)
GLM45 = (
    "Let me see.\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>  two\nlines </arg_value>\n"
    "<arg_key>count</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>"
)
MINIMAX = (
    'Let me see.\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="text">  two\nlines </parameter>\n'
    '<parameter name="count">3</parameter>\n</invoke>\n<invoke name="g">\n</invoke>\n</minimax:tool_call>'
)
DSML = (
    'Let me see.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="text" string="true">  two\nlines </｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="count" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", QWEN),
        ("qwen3_xml", QWEN.replace("<tool_call>\n<function=f>", "<function=f>")),
        ("seed_oss", QWEN.replace("tool_call>", "seed:tool_call>")),
        ("glm45", GLM45),
        ("glm47", GLM45.replace(">\n<", "><").replace("f\n<", "f<").replace("g\n<", "g<")),
        ("glm47", GLM45),
        ("minimax_m2", MINIMAX),
        ("deepseek_v32", DSML),
        ("deepseek_v4", DSML.replace("function_calls", "tool_calls")),
    ],
)
def test_several_calls_behind_content(name: str, text: str) -> None:
    answer = read(name, text, tools=TOOLS)
    assert answer.content == "Let me see."
    assert answer.calls == [("f", '{"text": "  two\\nlines ", "count": 3}'), ("g", "{}")]


def test_values_get_their_types_from_the_schema() -> None:
    def value(key: str, text: str) -> Any:
        call = f"<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
        [(_, arguments)] = read("glm45", call, tools=TOOLS).calls
        return json.loads(arguments)[key]

    assert value("text", "5") == "5"
    assert value("text", 'say "x" \\ é') == 'say "x" \\ é'
    assert value("maybe", "null") is None
    assert value("maybe", "nullable") == "nullable"
    assert value("maybe", "") == ""
    assert value("count", " 5 ") == 5
    assert value("count", "five") == "five"
    assert value("either", "5") == 5
    assert value("either", "[5]") == "[5]"
    assert value("items", '["a", {"b": null}]') == ["a", {"b": None}]
    assert value("items", "['a', True]") == ["a", True]
    assert value("flag", "true") is True
    assert value("flag", "True") is True
    assert value("kind", "a") == "a"
    assert value("shape", '{"x": 1}') == {"x": 1}
    assert value("any", "5") == 5
    assert value("any", "NaN") == "NaN"
    assert value("any", '"quoted"') == '"quoted"'
    assert value("unheard of", "word") == "word"


def test_deepseek_says_itself_whether_a_value_is_a_text() -> None:
    text = DSML.replace(">3<", '>{"a": "b"}<').replace("count", "text")
    assert read("deepseek_v32", text, tools=TOOLS).calls[0] == ("f", '{"text": "  two\\nlines ", "text": {"a": "b"}}')


def test_tags_of_other_parts_are_text_within_a_value() -> None:
    text = QWEN.replace("two", "</function><tool_call><parameter=x>")
    assert json.loads(read("qwen3_coder", text, tools=TOOLS).calls[0][1])["text"] == (
        "  </function><tool_call><parameter=x>\nlines "
    )


def test_a_text_goes_out_as_it_comes_and_stays_when_it_is_cut_off() -> None:
    cut = QWEN.index(" \n</parameter>")
    assert read("qwen3_coder", QWEN[:cut], tools=TOOLS).calls == [("f", '{"text": "  two\\nlines')]


@pytest.mark.parametrize(
    "text",
    ["<tool_call>\nhello\n</tool_call>", "<tool_call>\n<function=f>\nhello", "<function=>"],
)
def test_what_is_no_call_is_content(text: str) -> None:
    answer = read("qwen3_coder", text, special=False)
    assert (answer.content, answer.calls) == (text, [])


def test_a_call_that_breaks_off_behind_its_name_is_ended() -> None:
    answer = read("qwen3_coder", QWEN.replace("<parameter=count>", "oh <parameter=count>"), special=False, tools=TOOLS)
    assert answer.calls == [("f", '{"text": "  two\\nlines "}'), ("g", "{}")]
    assert "oh <parameter=count>" in answer.content


def test_a_word_behind_the_tag_is_no_call_of_glm() -> None:
    assert read("glm45", "<tool_call>is a tag", special=False).content == "<tool_call>is a tag"


def test_a_closing_tag_that_is_cut_off_is_no_content() -> None:
    for cut in range(MINIMAX.rindex("</invoke>") + len("</invoke>"), len(MINIMAX)):
        answer = read("minimax_m2", MINIMAX[:cut], tools=TOOLS, special=False)
        assert (cut, answer.content) == (cut, "Let me see.")
