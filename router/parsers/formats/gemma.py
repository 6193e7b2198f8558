"""The formats of Gemma: a dialect of JSON without quotes at keys."""

from __future__ import annotations

from slipstream.router.parsers.description.elements import CallName, GemmaArguments, Literal, Space
from slipstream.router.parsers.description.output_format import CallsPart, OutputFormat, ReasoningPart


def gemma_calls(opening: str, closing: str, quote: str) -> CallsPart:
    return CallsPart(
        call=(Literal(opening), Literal("call:"), CallName(), GemmaArguments(quote), Literal(closing)),
        separator=(Space(),),
    )


FUNCTION_GEMMA = OutputFormat(
    "functiongemma", calls=gemma_calls("<start_function_call>", "<end_function_call>", "<escape>")
)
GEMMA4 = OutputFormat(
    "gemma4",
    reasoning=ReasoningPart(("<|channel>thought\n", "<|channel>thought"), ("<channel|>",), anywhere=True),
    calls=gemma_calls("<|tool_call>", "<tool_call|>", '<|"|>'),
)

GEMMA_FORMATS = (FUNCTION_GEMMA, GEMMA4)
