"""Formats in which calls are a list in Python: `[f(key="value"), g()]`."""

from __future__ import annotations

from slipstream.router.parsers.description.elements import CallName, Literal, PythonArguments, Space
from slipstream.router.parsers.description.output_format import CallsPart, OutputFormat


def python_list(name: str, opening: Literal | None = None, closing: Literal | None = None) -> OutputFormat:
    return OutputFormat(
        name,
        calls=CallsPart(
            opening=(*((opening, Space()) if opening else ()), Literal("["), Space()),
            call=(CallName(), PythonArguments()),
            separator=(Space(), Literal(","), Space(" ")),
            closing=(Space(), Literal("]"), *((closing,) if closing else ())),
            only_at_start=opening is None or opening.optional,
        ),
    )


PYTHONIC = python_list("pythonic")  # Llama 3.2, ToolACE
LLAMA4_PYTHONIC = python_list(
    "llama4_pythonic",
    Literal("<|python_start|>", optional=True),
    Literal("<|python_end|>", optional=True),
)
LFM2 = python_list("lfm2", Literal("<|tool_call_start|>"), Literal("<|tool_call_end|>"))

PYTHON_FORMATS = (PYTHONIC, LLAMA4_PYTHONIC, LFM2)
