"""The names by which a configuration chooses parsers."""

from __future__ import annotations

from typing import NamedTuple

from slipstream.router.parsers.detection import AUTO, NONE, choose


class ParserNames(NamedTuple):
    """`auto`: what the model's chat template and config.json show; `none`: not read; or one of FORMATS."""

    calls: str = AUTO
    reasoning: str = AUTO


DETECTED = ParserNames()


def check_parsers(tool_call_parser: str, reasoning_parser: str) -> ParserNames:
    """Raises ValueError, with the key and the names that there are, if one of them is none."""
    for key, names in (("tool_call_parser", (tool_call_parser, NONE)), ("reasoning_parser", (NONE, reasoning_parser))):
        try:
            choose(*names, None, {})
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    return ParserNames(tool_call_parser, reasoning_parser)
