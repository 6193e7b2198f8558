"""Formats in which each argument of a call has tags of its own."""

from __future__ import annotations

from slipstream.router.parsers.description.elements import CallName, Literal, Space, StringFlag, TaggedArguments
from slipstream.router.parsers.description.output_format import CallsPart, OutputFormat


def function_calls(name: str, opening: str, closing: str) -> OutputFormat:
    """`<function=NAME>` with `<parameter=KEY>` on lines of their own."""
    return OutputFormat(
        name,
        calls=CallsPart(
            call=(
                Literal(opening, optional=True),  # some models begin with `<function=` after text
                Space("\n"),
                Literal("<function="),
                CallName(),
                Literal(">"),
                Space("\n"),
                TaggedArguments("<parameter=", (Literal(">"),), "</parameter>", value_on_lines=True),
                Literal("</function>"),
                Space("\n"),
                Literal(closing),
            ),
            separator=(Space("\n"),),
        ),
    )


def invocations(name: str, mark: str, block: str, after_key: tuple[Literal | StringFlag, ...]) -> OutputFormat:
    """A block of `<invoke name="NAME">` with `<parameter name="KEY">`; `mark` stands in all tags."""
    return OutputFormat(
        name,
        calls=CallsPart(
            opening=(Literal(f"<{block}>"), Space("\n")),
            call=(
                Literal(f'<{mark}invoke name="'),
                CallName(),
                Literal('">'),
                Space("\n"),
                TaggedArguments(f'<{mark}parameter name="', after_key, f"</{mark}parameter>"),
                Literal(f"</{mark}invoke>"),
            ),
            separator=(Space("\n"),),
            closing=(Space("\n"), Literal(f"</{block}>")),
        ),
    )


def keys_and_values(name: str, space: str) -> OutputFormat:
    """GLM's `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`, with `space` between the tags."""
    return OutputFormat(
        name,
        calls=CallsPart(
            call=(
                Literal("<tool_call>"),
                Space(),
                CallName(),
                Space(space),
                TaggedArguments(
                    "<arg_key>",
                    (Literal("</arg_key>"), Space(space), Literal("<arg_value>")),
                    "</arg_value>",
                    separator=space,
                ),
                Literal("</tool_call>"),
            ),
            separator=(Space(space),),
        ),
    )


# Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5, MiMo.
QWEN3_CODER = function_calls("qwen3_coder", "<tool_call>", "</tool_call>")
SEED_OSS = function_calls("seed_oss", "<seed:tool_call>", "</seed:tool_call>")
GLM45 = keys_and_values("glm45", "\n")  # GLM-4.5, 4.6
GLM47 = keys_and_values("glm47", "")  # GLM-4.7, 5
MINIMAX_M2 = invocations("minimax_m2", "", "minimax:tool_call", (Literal('">'),))
DSML_KEY_END = (Literal('" string="'), StringFlag(), Literal('">'))
DEEPSEEK_V32 = invocations("deepseek_v32", "｜DSML｜", "｜DSML｜function_calls", DSML_KEY_END)
DEEPSEEK_V4 = invocations("deepseek_v4", "｜DSML｜", "｜DSML｜tool_calls", DSML_KEY_END)

TAGGED_FORMATS = (QWEN3_CODER, SEED_OSS, GLM45, GLM47, MINIMAX_M2, DEEPSEEK_V32, DEEPSEEK_V4)
