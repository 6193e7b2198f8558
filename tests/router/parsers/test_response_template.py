"""On well-formed outputs, the parser agrees with transformers' parser and its response templates."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS
from transformers.utils.chat_parsing import parse_response

from slipstream.router.parsers.formats.registry import FORMATS, combined
from tests.support.router.output_writer import Call, answer_of, bound_to, parsed, schemas_of, written

TEMPLATES = {model_type: template for types, template in _RESPONSE_TEMPLATE_FALLBACKS.items() for model_type in types}
END = {"qwen3": "<|im_end|>", "qwen3_5": "<|im_end|>", "gemma4": "<turn|>"}
VALUES: list[Any] = ["text", "two words", 'a "quote"', "é漢", 5, -1.5, True, ["a", 1], {"k": "v", "n": {"m": []}}]


@pytest.mark.parametrize(
    ("model_type", "calls_name", "reasoning_name"),
    [("qwen3", "hermes", "qwen3"), ("qwen3_5", "qwen3_coder", "qwen3"), ("gemma4", "gemma4", "gemma4")],
)
def test_transformers_reads_the_same(model_type: str, calls_name: str, reasoning_name: str) -> None:
    form = combined(FORMATS[calls_name], FORMATS[reasoning_name])
    assert form is not None
    rng = random.Random(model_type)
    for _ in range(30):
        calls = [
            Call(name, {key: rng.choice(VALUES) for key in rng.sample(["a", "b", "c"], rng.randrange(3))})
            for name in rng.sample(["f", "g", "h"], rng.randrange(4))
        ]
        reasoning, content = rng.choice(["", "Hm, so."]), rng.choice(["", "Let me see.\nOne moment."])
        text = written(form, reasoning, content, calls)
        schemas = schemas_of(calls)
        answer = answer_of(parsed(bound_to(form, special=False), [text], tools=schemas))
        tools = [{"function": {"name": name, "parameters": schema}} for name, schema in schemas.items()]
        theirs = parse_response(text + END[model_type], TEMPLATES[model_type], prefix="", tools=tools)
        functions = [call["function"] for call in theirs.get("tool_calls", [])]
        assert [(name, json.loads(arguments)) for name, arguments in answer.calls] == [
            (function["name"], function["arguments"]) for function in functions
        ]
        assert (answer.reasoning, answer.content) == (theirs.get("reasoning_content", ""), theirs.get("content", ""))
