"""The counters of models as metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.router.observability.tensor_metrics.metric_lines import Labels, MetricLines, number
from slipstream.router.tensors.infer_error import FailureReason
from slipstream.router.tensors.latencies import LatencySummaries, LatencySummary
from slipstream.router.tensors.version_metrics import VersionMetrics

Value = Callable[[VersionMetrics], float]

COUNTS: tuple[tuple[str, str, Value], ...] = (
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda version: version.statistics.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda version: version.statistics.execution_count,
    ),
)
DURATIONS: tuple[tuple[str, str, Value], ...] = (
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda version: version.statistics.durations.success.ns // 1000,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda version: version.statistics.durations.queue.ns // 1000,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda version: version.statistics.durations.compute_input.ns // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda version: version.statistics.durations.compute_infer.ns // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda version: version.statistics.durations.compute_output.ns // 1000,
    ),
)
CACHE: tuple[tuple[str, str, Value], ...] = (
    (
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        lambda version: version.statistics.durations.cache_hit.count,
    ),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda version: version.statistics.durations.cache_hit.ns // 1000,
    ),
    (
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        lambda version: version.statistics.durations.cache_miss.count,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda version: version.statistics.durations.cache_miss.ns // 1000,
    ),
)
SUMMARIES: tuple[tuple[str, str, Callable[[LatencySummaries], LatencySummary]], ...] = (
    (
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
        lambda summaries: summaries.request,
    ),
    (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        lambda summaries: summaries.queue,
    ),
    (
        "nv_inference_compute_input_summary_us",
        "Summary of compute input duration in microseconds (does not include cached requests)",
        lambda summaries: summaries.compute_input,
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "Summary of compute inference duration in microseconds (does not include cached requests)",
        lambda summaries: summaries.compute_infer,
    ),
    (
        "nv_inference_compute_output_summary_us",
        "Summary of compute output duration in microseconds (does not include cached requests)",
        lambda summaries: summaries.compute_output,
    ),
)
CACHE_SUMMARIES: tuple[tuple[str, str, Callable[[LatencySummaries], LatencySummary]], ...] = (
    (
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        lambda summaries: summaries.cache_hit,
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        lambda summaries: summaries.cache_miss,
    ),
)
FIRST_RESPONSES = "nv_inference_first_response_histogram_ms"


def labels_of(version: VersionMetrics) -> Labels:
    return (("model", version.statistics.name), ("version", version.statistics.version))


def add_version_families(lines: MetricLines, versions: Sequence[VersionMetrics], *, has_durations: bool) -> None:
    """Counters and gauges. `has_durations`: those of durations, too."""
    success = [(labels_of(version), version.statistics.durations.success.count) for version in versions]
    description = "Number of successful inference requests, all batch sizes"
    lines.family("nv_inference_request_success", description, "counter", success)
    _add_failures(lines, versions)
    for name, text, value in (*COUNTS, *(DURATIONS if has_durations else ())):
        lines.family(name, text, "counter", [(labels_of(version), value(version)) for version in versions])
    cached = [version for version in versions if version.uses_response_cache]
    for name, text, value in CACHE:
        lines.family(name, text, "counter", [(labels_of(version), value(version)) for version in cached])
    pending = [(labels_of(version), version.num_pending) for version in versions]
    description = "Instantaneous number of pending requests awaiting execution per-model."
    lines.family("nv_inference_pending_request_count", description, "gauge", pending)
    loads = [(labels_of(version), version.load_s) for version in versions]
    lines.family("nv_model_load_duration_secs", "Model load time in seconds", "gauge", loads)


def _add_failures(lines: MetricLines, versions: Sequence[VersionMetrics]) -> None:
    failures: list[tuple[Labels, float]] = []
    for version in versions:
        (model, number_of_version) = labels_of(version)
        for reason in FailureReason:
            labels = (model, ("reason", reason.value), number_of_version)
            failures.append((labels, version.failures.get(reason, 0)))
    description = "Number of failed inference requests, all batch sizes"
    lines.family("nv_inference_request_failure", description, "counter", failures)


def add_latency_families(
    lines: MetricLines, versions: Sequence[VersionMetrics], quantiles: Sequence[float], now: float
) -> None:
    """Summaries and histograms, of the versions that have them. `now` is of the clock of the summaries."""
    summarised = [(labels_of(each), each.summaries, each) for each in versions if each.summaries is not None]
    for families, of_cache in ((SUMMARIES, False), (CACHE_SUMMARIES, True)):
        shown = [(labels, each) for labels, each, version in summarised if version.uses_response_cache or not of_cache]
        for name, description, summary_of in families if shown else ():
            lines.head(name, description, "summary")
            for labels, summaries in shown:
                summary = summary_of(summaries)
                values = zip(quantiles, summary.quantiles(quantiles, now), strict=True)
                pairs = [(number(quantile), number(value)) for quantile, value in values]
                lines.summary(name, labels, summary.count, summary.sum_us, pairs)
    histograms = [(labels_of(each), each.first_responses) for each in versions if each.first_responses is not None]
    if histograms:
        lines.head(FIRST_RESPONSES, "Duration from request to first response in milliseconds", "histogram")
    for labels, histogram in histograms:
        lines.histogram(FIRST_RESPONSES, labels, histogram.limits_ms, histogram.counts, histogram.sum_ms)
