"""The headers of rate limits by Anthropic's names: https://platform.claude.com/docs/en/api/rate-limits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

OPENAIS = re.compile(r"x-ratelimit-(limit|remaining|reset)-(requests|tokens)")
DURATION = re.compile(r"(?:(\d+)m)?(?:([\d.]+)s)?")
MILLISECONDS = re.compile(r"(\d+)ms")


def anthropic_lines(lines: str) -> str:
    """Header lines with OpenAI's names, as those of the access limits are, with Anthropic's."""
    pairs = [(name, value) for name, _, value in (line.partition(": ") for line in lines.splitlines())]
    return "".join([f"{name}: {value}\r\n" for name, value in anthropic_headers(pairs)])


def anthropic_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """OpenAI says after which time a limit is reset, Anthropic when."""
    made = []
    for name, value in headers:
        found = OPENAIS.fullmatch(name)
        if found is None:
            made.append((name, value))
            continue
        what, of = found.groups()
        made.append((f"anthropic-ratelimit-{of}-{what}", time_in(value) if what == "reset" else value))
    return made


def time_in(duration: str) -> str:
    """The time after a duration (`120ms`, `1.5s`, `6m0s`), as in RFC 3339."""
    in_ms, in_s = MILLISECONDS.fullmatch(duration), DURATION.fullmatch(duration)
    if in_ms is not None:
        seconds = int(in_ms[1]) / 1e3
    else:
        seconds = int(in_s[1] or 0) * 60 + float(in_s[2] or 0) if in_s is not None else 0.0
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
