"""The files that a benchmark writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.report.report import Report

SECRET = ("key", "headers")


class WrittenOutcome(Protocol):
    def json(self) -> dict[str, Any]: ...
    def csv(self) -> str: ...
    def records(self) -> Iterator[str]: ...


def write(outcome: WrittenOutcome, report: Report, options: Mapping[str, Any]) -> None:
    """Writes the requested files. Raises BenchError if one cannot be written."""
    texts: dict[str, Callable[[], str]] = {
        "json_file": lambda: json.dumps(outcome.json(), indent=1) + "\n",
        "csv_file": outcome.csv,
        "html_file": report.html,
        "records_file": lambda: "".join(f"{line}\n" for line in outcome.records()),
    }
    for option, text in texts.items():
        path: Path | None = options[option]
        if path is None:
            continue
        try:
            path.write_text(text(), encoding="utf-8")
        except OSError as error:
            raise BenchError(f"{path}: {error.strerror}") from None


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as plain values, without those that are secret."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in options.items() if name not in SECRET
    }
