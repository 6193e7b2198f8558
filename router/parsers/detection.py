"""Which format a model writes: found in the text of its chat template, and its type in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.router.parsers.description.output_format import OutputFormat
from slipstream.router.parsers.formats.registry import FORMATS, combined

__all__ = ["FORMATS", "combined", "detect"]


def detect(chat_template: str | None, config: Mapping[str, Any]) -> OutputFormat | None:
    """The format of a model with this template and config.json; None: neither calls nor reasoning are known."""
    raise NotImplementedError


def begins_in_reasoning(form: OutputFormat, prompt: str) -> bool:
    """Whether an output that continues `prompt` begins within reasoning."""
    raise NotImplementedError
