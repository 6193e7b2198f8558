"""Formats in which a call is a JSON object with name and arguments."""

from __future__ import annotations

from slipstream.router.parsers.description.elements import JsonEnvelope, Literal, Space
from slipstream.router.parsers.description.output_format import CallsPart, OutputFormat

NAME_AND_ARGUMENTS = JsonEnvelope()

# Hermes 2 and 3, Qwen2.5, QwQ, Qwen3, Granite 4, many fine-tuned models.
HERMES = OutputFormat(
    "hermes",
    calls=CallsPart(
        call=(Literal("<tool_call>"), Space("\n"), NAME_AND_ARGUMENTS, Space("\n"), Literal("</tool_call>")),
        separator=(Space("\n"),),
    ),
)
LONGCAT = OutputFormat(
    "longcat",
    calls=CallsPart(
        call=(
            Literal("<longcat_tool_call>"),
            Space("\n"),
            NAME_AND_ARGUMENTS,
            Space("\n"),
            Literal("</longcat_tool_call>"),
        ),
        separator=(Space("\n"),),
    ),
)
# The demo model of this repository.
SLIPSTREAM_DEMO = OutputFormat("slipstream-demo", calls=CallsPart(call=(Literal("<|tool_call|>"), NAME_AND_ARGUMENTS)))
# Llama 3.1 to 3.3: the template shows `parameters`; `<|python_tag|>` is written by some, mostly after a system message
# that names built-in tools.
LLAMA3_JSON = OutputFormat(
    "llama3_json",
    calls=CallsPart(
        call=(
            Literal("<|python_tag|>", optional=True),
            Space(),
            JsonEnvelope(arguments_keys=("parameters", "arguments")),
        ),
        separator=(Literal(";"), Space(" ")),
        only_at_start=True,
    ),
)


def list_of_calls(name: str, opening: Literal, closing: Literal | None = None, space: str = "") -> OutputFormat:
    """A marker and a JSON list of calls."""
    return OutputFormat(
        name,
        calls=CallsPart(
            opening=(opening, Space(space), Literal("["), Space()),
            call=(NAME_AND_ARGUMENTS,),
            separator=(Space(), Literal(","), Space(" ")),
            closing=(Space(), Literal("]"), *((closing,) if closing else ())),
        ),
    )


# Mistral up to tokenizer v7 (7B v0.3, Nemo, Small 2409, Large 2411).
MISTRAL_LIST = list_of_calls("mistral_list", Literal("[TOOL_CALLS]"), space=" ")
# Granite 3: `<tool_call>` in 3.1, where it is plain text.
GRANITE = list_of_calls("granite", Literal("<|tool_call|>", variants=("<tool_call>",)))
# Phi-4-mini: the model's card shows `<|tool_call|>`, its training data `functools`.
PHI4_MINI_JSON = list_of_calls(
    "phi4_mini_json",
    Literal("functools", variants=("<|tool_call|>",)),
    Literal("<|/tool_call|>", optional=True),
)
JAMBA = list_of_calls("jamba", Literal("<tool_calls>"), Literal("</tool_calls>"))
# Nemotron Nano 2 and Llama-Nemotron.
NEMOTRON_JSON = list_of_calls("nemotron_json", Literal("<TOOLCALL>"), Literal("</TOOLCALL>"))

JSON_FORMATS = (
    HERMES,
    LONGCAT,
    SLIPSTREAM_DEMO,
    LLAMA3_JSON,
    MISTRAL_LIST,
    GRANITE,
    PHI4_MINI_JSON,
    JAMBA,
    NEMOTRON_JSON,
)
