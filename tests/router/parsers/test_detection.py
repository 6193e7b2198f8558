"""The format of a model is found in its chat template and its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.router.parsers.detection import CALLS_SIGNS, MODEL_TYPES, REASONING_SIGNS, choose, detect
from slipstream.router.parsers.formats.registry import FORMATS

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "models" / "slipstream-demo" / "chat_template.jinja"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>\\n{\"name\": ' }}", "hermes"),
        ("<tool_call>{{ '</think>' in content }}<think>", "hermes+qwen3"),
        ("<tool_call>\n<function=f>\n<parameter=x>", "qwen3_coder"),
        ("<seed:tool_call><function=f><parameter=x><seed:think>", "seed_oss"),
        ("<tool_call>{function-name}\n<arg_key>{arg-key}</arg_key>\n<arg_value><think>", "glm45+qwen3"),
        ("<tool_call>{function-name}<arg_key>{arg-key}</arg_key><arg_value><think>", "glm47+qwen3"),
        ('<minimax:tool_call><invoke name=""><think>', "minimax_m2"),
        ("{%- set dsml_token = '｜DSML｜' %}<{{ dsml_token }}function_calls>", "deepseek_v32"),
        ("<｜DSML｜tool_calls>", "deepseek_v4"),
        ("<｜tool▁calls▁begin｜><｜tool▁sep｜>\n```json", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜><｜tool▁sep｜></think>{{ '<think>' }}", "deepseek_v31+qwen3"),
        ("{{ content.split('</think>')[-1] }}", "deepseek_r1"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi_k2"),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}[THINK]", "mistral+magistral"),
        ("{{ '[TOOL_CALLS] [' }}", "mistral_list"),
        ("<|start_of_role|>respond with <|tool_call|> and a list of tools Here is my thought process:", "granite"),
        ("<|start_of_role|>tools <think><response>", "granite+granite33"),
        ("<|start_of_role|><tool_call></tool_call>", "granite4"),
        ("<|tool|>{{ tools }}<|/tool|>", "phi4_mini_json"),
        ('<|start_header_id|>{"name": , "parameters": }', "llama3_json"),
        ("<|header_start|>tools [func_name1(params_name1=params_value1)]", "llama4_pythonic"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "openai"),
        ("<|tool_call>call:f{<|channel>thought", "gemma4"),
        ("<start_function_call>call:f{", "functiongemma"),
        ("<|im_start|>{{ message.content }}", None),
        ("", None),
    ],
)
def test_a_template_shows_its_format(template: str, name: str | None) -> None:
    form = detect(template, {})
    assert (form.name if form else None) == name


def test_the_demo_model_shows_its_format() -> None:
    form = detect(DEMO.read_text(), {})
    assert form is not None
    assert form.calls == FORMATS["slipstream-demo"].calls
    assert form.reasoning == FORMATS["qwen3"].reasoning


def test_without_a_template_the_models_type_counts() -> None:
    form = detect(None, {"model_type": "gpt_oss"})
    assert form is not None
    assert form.channels is not None
    assert detect(None, {"model_type": "llama"}) is None
    assert detect(None, {"model_type": ["?"]}) is None


def test_calls_and_reasoning_are_chosen_by_name() -> None:
    form = choose("hermes", "deepseek_r1", "[TOOL_CALLS]", {})
    assert form is not None
    assert (form.calls, form.reasoning) == (FORMATS["hermes"].calls, FORMATS["deepseek_r1"].reasoning)
    only_reasoning = choose("none", "auto", "<tool_call><think>", {})
    assert only_reasoning is not None
    assert only_reasoning.calls is None
    assert choose("none", "none", "<tool_call><think>", {}) is None


def test_the_name_mistral_stands_for_the_form_that_the_template_writes() -> None:
    old, new = (choose("mistral", "none", template, {}) for template in ("[TOOL_CALLS] [", "[TOOL_CALLS]f[ARGS]"))
    assert old is not None
    assert new is not None
    assert (old.calls, new.calls) == (FORMATS["mistral_list"].calls, FORMATS["mistral"].calls)


@pytest.mark.parametrize(("calls", "reasoning"), [("qwen3", "none"), ("auto", "hermes"), ("hermes!", "auto")])
def test_an_unknown_name_is_refused(calls: str, reasoning: str) -> None:
    wrong = reasoning if calls == "auto" else calls
    with pytest.raises(ValueError, match=f"unknown format of .*'{wrong}'; known are auto, none, deepseek"):
        choose(calls, reasoning, None, {})


def test_every_sign_names_a_format() -> None:
    names = {sign.name for sign in (*CALLS_SIGNS, *REASONING_SIGNS)} | set(MODEL_TYPES.values())
    assert names <= FORMATS.keys()
    assert all(form.name == name for name, form in FORMATS.items())


def test_the_page_about_tools_has_all_formats() -> None:
    page = (ROOT / "docs" / "design" / "tools.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in FORMATS)


def test_only_special_tokens_that_a_format_names_get_characters() -> None:
    form = FORMATS["deepseek_v32"]
    characters = form.marker_characters(["｜DSML｜", "<think>", "<|im_end|>", ""])
    assert set(characters) == {"｜DSML｜", "<think>"}
    bound = form.bound(characters)
    assert bound.format.calls is not None
    [marker] = bound.format.calls.markers
    assert marker == f"<{characters['｜DSML｜']}function_calls>"
    assert bound.token_of(characters["<think>"]) == "<think>"
    assert bound.token_of("x") is None
