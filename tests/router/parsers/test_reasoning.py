"""Reasoning, and the channels of gpt-oss."""

from __future__ import annotations

import pytest

from slipstream.router.parsers.detection import begins_in_reasoning
from slipstream.router.parsers.formats.registry import FORMATS
from slipstream.router.parsers.output_parser import OutputParser
from tests.support.router.output_writer import bound_to, read


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3", "<think>\nOne, two.\n</think>\n\nThree."),
        ("deepseek_r1", "<think>One, two.</think>Three."),
        ("magistral", "[THINK]One, two.[/THINK]Three."),
        ("seed_oss", "<seed:think>One, two.</seed:think>Three."),
        ("granite", "Here is my thought process: One, two. Here is my response: Three."),
        ("granite", "Here's my thought process:\nOne, two.\nHere's my response:\nThree."),
        ("granite33", "<think>One, two.</think>\n<response>Three.</response>"),
        ("gemma4", "<|channel>thought\nOne, two.<channel|>Three."),
        ("openai", "<|channel|>analysis<|message|>One, two.<|end|><|start|>assistant<|channel|>final<|message|>Three."),
    ],
)
def test_reasoning_and_content(name: str, text: str) -> None:
    answer = read(name, text)
    assert (answer.reasoning, answer.content) == ("One, two.", "Three.")


def test_the_prompt_may_have_opened_the_section() -> None:
    for text in ("One, two.\n</think>\n\nThree.", "<think>One, two.</think>Three."):
        answer = read("qwen3", text, begins_in_reasoning=True)
        assert (answer.reasoning, answer.content) == ("One, two.", "Three.")


def test_an_empty_section_is_nothing() -> None:
    answer = read("qwen3", "<think>\n\n</think>\n\nThree.")
    assert (answer.reasoning, answer.content) == ("", "Three.")


def test_reasoning_that_does_not_end_is_reasoning() -> None:
    assert read("qwen3", "<think>One, </thi").reasoning == "One, </thi"


def test_the_tag_within_content_is_content() -> None:
    text = "The tag <think> opens a section."
    assert read("qwen3", text, special=False).content == text


def test_only_a_special_token_begins_a_call_within_reasoning() -> None:
    text = "One {call}, two.</think>{call}"
    form = "minimax_m2"
    call = '<minimax:tool_call><invoke name="f"></invoke></minimax:tool_call>'
    plain = read(form, text.format(call=call), special=False, begins_in_reasoning=True)
    assert plain.reasoning == f"One {call}, two."
    assert plain.calls == [("f", "{}")]
    special = read(form, text.format(call=call), special=True, begins_in_reasoning=True)
    assert special.reasoning == "One"
    assert special.calls == [("f", "{}"), ("f", "{}")]


def test_the_parser_says_whether_it_is_within_reasoning() -> None:
    parser = OutputParser(bound_to(FORMATS["qwen3"], special=False), begins_in_reasoning=True)
    states = []
    for piece in ("", "One", "</thi", "nk>", "Two"):
        parser.feed(piece)
        states.append(parser.in_reasoning)
    assert states == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("name", "prompt", "expected"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "<|im_start|>assistant\n", False),
        ("deepseek_r1", "<｜Assistant｜>", True),
        ("deepseek_r1", "<｜Assistant｜><think>\n\n</think>\n", False),
        ("deepseek_v31", "<｜Assistant｜></think>", False),
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", False),
        ("openai", "<|start|>assistant", False),
        ("hermes", "<think>\n", False),
    ],
)
def test_the_end_of_the_prompt_says_where_the_output_begins(name: str, prompt: str, expected: bool) -> None:
    assert begins_in_reasoning(FORMATS[name], prompt) is expected


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>",
        " to=functions.f<|channel|>commentary json<|message|>",
        " to=functions.f<|channel|>commentary<|constrain|>json<|message|>",
        "<|channel|>analysis to=functions.f code<|message|>",
        "<|start|>assistant to=functions.f<|channel|>commentary<|message|>",
    ],
)
@pytest.mark.parametrize("end", ["", "<|call|>"])
def test_a_call_of_gpt_oss(header: str, end: str) -> None:
    answer = read("openai", f'{header}{{"a": "<|end|>"}}{end}')
    assert answer.calls == [("f", '{"a": "<|end|>"}')]
    assert (answer.content, answer.reasoning) == ("", "")


def test_messages_of_gpt_oss() -> None:
    text = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
        "<|start|>assistant<|channel|>commentary to=functions.g <|constrain|>json<|message|><|call|>"
        "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
    )
    answer = read("openai", text)
    assert (answer.reasoning, answer.content) == ("One.\nTwo.", "I look.\nDone.")
    assert answer.calls == [("f", "{}"), ("g", "{}")]


@pytest.mark.parametrize("text", ["Just text.", "to the point", " to", "", "  \n"])
def test_text_without_a_header_is_content(text: str) -> None:
    assert read("openai", text).content == text


def test_text_between_messages_is_content() -> None:
    text = "<|channel|>final<|message|>One<|end|>two<|start|>assistant<|channel|>final<|message|>three<|return|>four"
    assert read("openai", text).content == "One\ntwo\nthree\nfour"


def test_a_recipient_that_is_no_function_makes_no_call() -> None:
    text = "<|channel|>commentary to=assistant<|message|>Hello"
    assert read("openai", text).content == "Hello"
    assert read("openai", text.replace("assistant", "f"), tools={"f": {}}).calls == [("f", "Hello")]
