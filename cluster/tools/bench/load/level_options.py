"""The levels of load that the options of the command ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from slipstream.cluster.tools.bench.load.load_level import Extent, LoadLevel


def levels_of(options: Mapping[str, Any], *, is_trace: bool = False) -> list[LoadLevel]:
    """The levels of load. By default those of a trace are its own times; otherwise one request at a time. Raises
    UsageError."""
    arrivals, burstiness = options["arrivals"], options["burstiness"]
    counts = numbers("--concurrency", options["concurrency"])
    rates = numbers("--request-rate", options["request_rate"])
    if any(count != int(count) for count in counts):
        raise click.UsageError(f"--concurrency: whole numbers were expected, got {options['concurrency']}")
    try:
        if rates:
            limit = int(counts[0]) if counts else None
            return [LoadLevel(limit, rate, arrivals, burstiness) for rate in rates]
        if counts:
            return [LoadLevel(int(count)) for count in counts]
        return [LoadLevel()] if is_trace else [LoadLevel(1)]
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def numbers(option: str, text: str | None) -> list[float]:
    try:
        return [float(part) for part in text.split(",")] if text else []
    except ValueError:
        raise click.UsageError(f"{option}: numbers with commas between them were expected, got {text!r}") from None


def extent_of(level: LoadLevel, options: Mapping[str, Any], trace_length: int | None = None) -> Extent:
    """How long a level lasts. By default a whole trace, ten rounds of a concurrency, or half a minute of a rate."""
    count = options["request_count"]
    if count is None and options["duration"] is None:
        if trace_length is not None:
            count = trace_length
        elif level.rate is not None:
            count = max(round(30 * level.rate), 20)
        else:
            count = max(10 * (level.concurrency or 1), 20)
    return Extent(count, options["duration"], options["warm_up"], options["timeout"])
