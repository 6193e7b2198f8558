"""The outcome of a whole run, as JSON, as CSV and as lines about its requests. `outcome_report` shows it to people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.load.answer_slos import Slos
from slipstream.cluster.tools.bench.load.level_run import LevelRun
from slipstream.cluster.tools.bench.load.measures import FORMAT, Measures
from slipstream.cluster.tools.bench.load.measures_csv import csv_of
from slipstream.cluster.tools.report.table import Table


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results of a run. `settings` are its options in words and plain values, `notes` what the reader should
    know. `by_model` are the measures of each model and level, where several were asked for."""

    url: str
    model: str
    settings: dict[str, Any]
    slos: Slos
    levels: Sequence[Measures]
    runs: Sequence[LevelRun]
    notes: Sequence[str] = ()
    by_model: Sequence[tuple[str, Measures]] = ()
    compared: Table | None = None

    def json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "url": self.url,
            "model": self.model,
            "began": self.runs[0].unix_s if self.runs else None,
            "settings": self.settings,
            "goodput_slos_ms": dict(self.slos.limits_ms),
            "notes": list(self.notes),
            "levels": [level.json() for level in self.levels],
            "by_model": [{"model": model, **level.json()} for model, level in self.by_model],
        }

    def csv(self) -> str:
        return csv_of(self.levels)

    def records(self) -> Iterator[str]:
        """One line of JSON for each request; times are in seconds from the beginning of its level."""
        for run in self.runs:
            for answer in run.answers:
                yield json.dumps({"level": run.level.name, **record_of(answer, run.begun_s)})


def record_of(answer: ClientAnswer, begun_s: float) -> dict[str, Any]:
    return {
        "model": answer.model,
        "begun_s": answer.begun_s - begun_s,
        "due_s": answer.due_s - begun_s if answer.due_s is not None else None,
        "ended_s": answer.ended_s - begun_s,
        "status": answer.status,
        "ttft_s": answer.ttft_s,
        "itl_s": answer.itl_s,
        "latency_s": answer.latency_s,
        "longest_gap_s": answer.longest_gap_s,
        "input_tokens": answer.num_prompt_tokens,
        "cached_tokens": answer.num_cached_tokens,
        "output_tokens": answer.num_tokens,
        "wanted_tokens": answer.wanted_tokens,
        "error_kind": answer.kind,
        "error": answer.error,
    }
