"""The format of gpt-oss, as OpenAI's document on harmony describes it."""

from __future__ import annotations

from slipstream.router.parsers.description.output_format import ChannelsPart, OutputFormat

OPENAI = OutputFormat("openai", channels=ChannelsPart())
