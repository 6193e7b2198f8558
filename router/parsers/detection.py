"""Which format a model writes: found in the text of its chat template, else by its type in config.json.

A template shows the format twice, in the instructions for tools and where it renders calls of the history. Its texts
are therefore the best sign: fine-tuned models keep a model's type and change the template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.router.parsers.description.output_format import OutputFormat
from slipstream.router.parsers.formats.registry import FORMATS, combined
from slipstream.router.parsers.readers.text_input import WHITE

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True, slots=True)
class Sign:
    """A format whose templates have all these `texts`, and none of those in `without`."""

    name: str
    texts: tuple[str, ...]
    without: tuple[str, ...] = ()


WITH_CALLS = {name: form for name, form in FORMATS.items() if form.calls is not None or form.channels is not None}
WITH_REASONING = {
    name: form for name, form in FORMATS.items() if form.reasoning is not None or form.channels is not None
}

# The first that fits counts.
CALLS_SIGNS = (
    Sign("openai", ("<|channel|>", "<|message|>")),
    Sign("gemma4", ("<|tool_call>call:",)),
    Sign("functiongemma", ("<start_function_call>",)),
    Sign("deepseek_v4", ("｜DSML｜", "tool_calls>")),
    Sign("deepseek_v32", ("｜DSML｜",)),
    Sign("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    Sign("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    Sign("kimi_k2", ("<|tool_call_begin|>",)),
    Sign("minimax_m2", ("<minimax:tool_call>",)),
    Sign("glm47", ("<arg_key>", "</arg_key><arg_value>")),
    Sign("glm45", ("<arg_key>",)),
    Sign("seed_oss", ("<seed:tool_call>",)),
    Sign("qwen3_coder", ("<function=", "<parameter=")),
    Sign("longcat", ("<longcat_tool_call>",)),
    Sign("lfm2", ("<|tool_call_start|>",)),
    Sign("nemotron_json", ("<TOOLCALL>",)),
    Sign("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    Sign("mistral_list", ("[TOOL_CALLS]",)),
    Sign("slipstream-demo", ('<|tool_call|>{"name": ',), without=("<|/tool_call|>",)),
    Sign("phi4_mini_json", ("<|tool|>", "<|/tool|>")),
    Sign("granite4", ("<|start_of_role|>", "<tool_call>")),
    Sign("granite", ("<|start_of_role|>", "tool")),
    Sign("hermes", ("<tool_call>",)),
    Sign("jamba", ("<tool_calls>",)),
    Sign("llama3_json", ("<|header_start|>", '"parameters"')),
    Sign("llama4_pythonic", ("<|header_start|>", "tools")),
    Sign("pythonic", ("func_name1(",)),
    Sign("llama3_json", ("<|start_header_id|>", '"parameters"')),
    Sign("llama3_json", ("<|python_tag|>",), without=("<function=",)),
)
REASONING_SIGNS = (
    Sign("openai", ("<|channel|>", "<|message|>")),
    Sign("gemma4", ("<|channel>",)),
    Sign("magistral", ("[THINK]",)),
    Sign("seed_oss", ("<seed:think>",)),
    Sign("granite", ("Here is my thought process:",)),
    Sign("granite33", ("<think>", "<response>", "<|start_of_role|>")),
    Sign("minimax_m2", ("<think>", "<minimax:tool_call>")),
    Sign("qwen3", ("<think>",)),
    Sign("deepseek_r1", ("</think>",)),  # the template cuts reasoning off in the history, and does not write `<think>`
)
# Where no template says it: models with calls and reasoning.
MODEL_TYPES = {
    "gpt_oss": "openai",
    "kimi_k2": "kimi_k2",
    "minimax_m2": "minimax_m2",
    "glm4_moe": "glm45",
    "deepseek_v32": "deepseek_v32",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
}


def detect(chat_template: str | None, config: Mapping[str, Any]) -> OutputFormat | None:
    """The format of a model with this template and config.json; None: neither calls nor reasoning are known."""
    return choose(AUTO, AUTO, chat_template, config)


def choose(calls: str, reasoning: str, chat_template: str | None, config: Mapping[str, Any]) -> OutputFormat | None:
    """The format with these calls and this reasoning, each a name, `auto` or `none`. Raises ValueError for an unknown
    name."""
    template = chat_template or ""
    by_type = MODEL_TYPES.get(str(config.get("model_type")))
    if calls == AUTO:
        calls = found_name(CALLS_SIGNS, template) or by_type or NONE
    elif calls == "mistral" and "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        calls = "mistral_list"
    if reasoning == AUTO:
        reasoning = found_name(REASONING_SIGNS, template) or by_type or NONE
    return combined(named("calls", calls, WITH_CALLS), named("reasoning", reasoning, WITH_REASONING))


def named(part: str, name: str, formats: Mapping[str, OutputFormat]) -> OutputFormat | None:
    if name == NONE:
        return None
    if name not in formats:
        raise ValueError(f"unknown format of {part}: {name!r}; known are {AUTO}, {NONE}, {', '.join(sorted(formats))}")
    return formats[name]


def found_name(signs: tuple[Sign, ...], chat_template: str) -> str | None:
    for sign in signs:
        if all(text in chat_template for text in sign.texts) and not any(
            text in chat_template for text in sign.without
        ):
            return sign.name
    return None


def begins_in_reasoning(form: OutputFormat, prompt: str) -> bool:
    """Whether an output that continues `prompt` begins within reasoning: the prompt ends with the text that opens it
    (`<think>`), or the model does so without it and the prompt has not closed it."""
    end = prompt.rstrip(WHITE)
    if form.channels is not None:
        return end.endswith(form.channels.channel + form.channels.reasoning_channel + form.channels.message)
    if form.reasoning is None:
        return False
    if end.endswith(tuple(text.rstrip(WHITE) for text in form.reasoning.opens)):
        return True
    return form.reasoning.is_assumed and not end.endswith(form.reasoning.closes)
