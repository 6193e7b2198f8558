"""Formats in which markers stand between a call's name and the JSON object of its arguments."""

from __future__ import annotations

from slipstream.router.parsers.description.elements import CallId, CallName, JsonArguments, Literal, Space
from slipstream.router.parsers.description.output_format import CallsPart, OutputFormat

# Mistral from tokenizer v11 on (Small 3.2, Magistral, Devstral, Medium 3).
MISTRAL = OutputFormat(
    "mistral",
    calls=CallsPart(
        call=(
            Literal("[TOOL_CALLS]"),
            Space(),
            CallName(),
            CallId("[CALL_ID]"),
            Literal("[ARGS]"),
            Space(),
            JsonArguments(),
        )
    ),
)

DEEPSEEK_OPENING = (Literal("<｜tool▁calls▁begin｜>", optional=True), Space())
DEEPSEEK_CLOSING = (Space(), Literal("<｜tool▁calls▁end｜>"))

# DeepSeek V3, V3-0324, R1.
DEEPSEEK_V3 = OutputFormat(
    "deepseek_v3",
    calls=CallsPart(
        opening=DEEPSEEK_OPENING,
        call=(
            Literal("<｜tool▁call▁begin｜>"),
            Literal("function", optional=True),
            Literal("<｜tool▁sep｜>"),
            CallName(),
            Space("\n"),
            Literal("```json"),
            Space("\n"),
            JsonArguments(),
            Space("\n"),
            Literal("```"),
            Space(),
            Literal("<｜tool▁call▁end｜>"),
        ),
        separator=(Space("\n"),),
        closing=DEEPSEEK_CLOSING,
    ),
)
DEEPSEEK_V31 = OutputFormat(
    "deepseek_v31",
    calls=CallsPart(
        opening=DEEPSEEK_OPENING,
        call=(
            Literal("<｜tool▁call▁begin｜>"),
            CallName(),
            Literal("<｜tool▁sep｜>"),
            Space(),
            JsonArguments(),
            Space(),
            Literal("<｜tool▁call▁end｜>"),
        ),
        separator=(Space(),),
        closing=DEEPSEEK_CLOSING,
    ),
)
KIMI_K2 = OutputFormat(
    "kimi_k2",
    calls=CallsPart(
        opening=(Literal("<|tool_calls_section_begin|>", optional=True), Space()),
        call=(
            Literal("<|tool_call_begin|>"),
            Space(),
            CallName("functions.", numbered=True),
            Space(),
            Literal("<|tool_call_argument_begin|>"),
            Space(),
            JsonArguments(),
            Space(),
            Literal("<|tool_call_end|>"),
        ),
        separator=(Space(),),
        closing=(Space(), Literal("<|tool_calls_section_end|>")),
    ),
)

MARKED_FORMATS = (MISTRAL, DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2)
