"""Computes the metrics of a level from its answers: those of GenAI-Perf and AIPerf, under the same names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.load.answer_slos import Slos
from slipstream.cluster.tools.bench.load.level_run import LevelRun
from slipstream.cluster.tools.bench.load.load_level import LoadLevel

FORMAT = "slipstream-bench/1"  # of the JSON with measures, whatever kind the model is
STATISTICS = ("avg", "min", "max", "p99", "p90", "p75", "p50", "std")
UNITS = {
    "time_to_first_token": "ms",
    "inter_token_latency": "ms",
    "longest_gap": "ms",
    "request_latency": "ms",
    "output_token_throughput_per_user": "tokens/s",
    "output_sequence_length": "tokens",
    "input_sequence_length": "tokens",
    "cached_tokens": "tokens",
    "output_token_throughput": "tokens/s",
    "total_token_throughput": "tokens/s",
    "request_throughput": "requests/s",
    "inference_throughput": "rows/s",
    "time_to_first_response": "ms",
    "inter_response_latency": "ms",
    "responses_per_request": "responses",
    "goodput": "requests/s",
    "good_request_share": "",
    "request_count": "requests",
    "error_count": "requests",
    "unfinished_count": "requests",
    "late_count": "requests",
    "benchmark_duration": "s",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `values` has all `STATISTICS` if it was measured for each request, or only `avg` if it is one
    number."""

    name: str
    values: dict[str, float]

    @property
    def unit(self) -> str:
        return UNITS[self.name]


@dataclass(frozen=True, slots=True)
class Measures:
    """The metrics of one level. `errors` are the counts of each kind, with an example."""

    level: LoadLevel
    metrics: dict[str, Metric]
    errors: dict[str, tuple[int, str]]
    was_interrupted: bool = False

    def get(self, name: str, statistic: str = "avg") -> float | None:
        metric = self.metrics.get(name)
        return metric.values.get(statistic) if metric is not None else None

    def json(self) -> dict[str, Any]:
        return {
            "name": self.level.name,
            "concurrency": self.level.concurrency,
            "request_rate": self.level.rate,
            "was_interrupted": self.was_interrupted,
            "metrics": {metric.name: {"unit": metric.unit, **metric.values} for metric in self.metrics.values()},
            "errors": [{"kind": kind, "count": n, "example": text} for kind, (n, text) in self.errors.items()],
        }


def measures(run: LevelRun, slos: Slos) -> Measures:
    """The metrics of a run. As in AIPerf, its duration is from the first request to the last token of a good answer."""
    good = [answer for answer in run.answers if answer.is_good]
    sampled = {
        "time_to_first_token": in_ms(answer.ttft_s for answer in good),
        "inter_token_latency": in_ms(answer.itl_s for answer in good),
        "longest_gap": in_ms(answer.longest_gap_s or None for answer in good),
        "request_latency": in_ms(answer.latency_s for answer in good),
        "output_token_throughput_per_user": [1 / itl for a in good if (itl := a.itl_s)],
        "output_sequence_length": [float(answer.num_tokens) for answer in good],
        "input_sequence_length": [float(a.num_prompt_tokens) for a in good if a.num_prompt_tokens is not None],
        "cached_tokens": [float(a.num_cached_tokens) for a in good if a.num_cached_tokens is not None],
    }
    metrics = {name: Metric(name, statistics(values)) for name, values in sampled.items() if values}

    def single(name: str, value: float) -> None:
        metrics[name] = Metric(name, {"avg": value})

    if good:
        span_s = max(a.latest_s or a.ended_s for a in good) - min(a.begun_s for a in run.answers)
        num_output, num_input = sum(sampled["output_sequence_length"]), sum(sampled["input_sequence_length"])
        single("output_token_throughput", num_output / span_s)
        single("total_token_throughput", (num_output + num_input) / span_s)
        single("request_throughput", len(good) / span_s)
        if slos:
            num_kept = sum(map(slos.is_kept, good))
            single("goodput", num_kept / span_s)
            single("good_request_share", num_kept / len(run.answers))
        single("benchmark_duration", span_s)
    elif slos:
        single("goodput", 0.0)
        single("good_request_share", 0.0)
    single("request_count", len(good))
    single("error_count", len(run.answers) - len(good))
    if run.num_unfinished:
        single("unfinished_count", run.num_unfinished)
    if run.num_late:
        single("late_count", run.num_late)
    return Measures(run.level, metrics, errors_of(run.answers), run.was_interrupted)


def measures_by_model(run: LevelRun, slos: Slos) -> list[tuple[str, Measures]]:
    """The metrics of each model's requests of a run, by name; none if all were for the same one. Their rates are over
    the time of that model's own requests."""
    models = sorted({answer.model for answer in run.answers})
    if len(models) < 2:
        return []
    parts = [(model, [answer for answer in run.answers if answer.model == model]) for model in models]
    return [(model, measures(LevelRun(run.level, answers), slos)) for model, answers in parts]


def errors_of(answers: Iterable[ClientAnswer]) -> dict[str, tuple[int, str]]:
    """The kinds of errors, the most frequent first."""
    failed = [answer for answer in answers if not answer.is_good]
    examples: dict[str, str] = {}
    for answer in failed:
        examples.setdefault(answer.kind, answer.error)
    return {kind: (count, examples[kind]) for kind, count in Counter(a.kind for a in failed).most_common()}


def in_ms(seconds: Iterable[float | None]) -> list[float]:
    return [value * 1e3 for value in seconds if value is not None]


def statistics(values: list[float]) -> dict[str, float]:
    """Statistics of some values. Percentiles are interpolated, and the standard deviation is that of the population
    (the defaults of numpy, and so of AIPerf)."""
    ordered = sorted(values)
    percentiles = [percentile(ordered, share) for share in (0.99, 0.9, 0.75, 0.5)]
    found = (fmean(ordered), ordered[0], ordered[-1], *percentiles, pstdev(ordered))
    return dict(zip(STATISTICS, found, strict=True))


def percentile(values: Iterable[float], share: float) -> float:
    """A percentile, interpolated between its two neighbours; NaN if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
