"""Prometheus metrics of one model: what its clients have seen, and a snapshot of its dispatcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from slipstream.router.observability.front_counts import Histogram, Latencies, ModelCounts
from slipstream.router.observability.metric_families import labelled_counter, labelled_gauge
from slipstream.router.observability.placement_metrics import forecast_families, service_time_families
from slipstream.router.observability.prefix_metrics import prefix_index_families
from slipstream.router.observability.step_metrics import step_families
from slipstream.router.observability.version_metrics import version_families
from slipstream.router.observability.worker_metrics import kv_usage, worker_families
from slipstream.router.status.status import Snapshot

MAX_PRIORITY_SHOWN = 8  # and -8: clients choose priorities, and each value would become a time series for ever


def model_families(counts: ModelCounts, snapshot: Snapshot) -> Iterator[Metric]:
    """All metrics of a model, without its name."""
    yield from request_families(counts, snapshot)
    yield from latency_families(counts)
    yield from size_families(counts)
    yield from dispatch_families(snapshot)
    yield GaugeMetricFamily(
        "slipstream:closed_links",
        "Pairs of hosts that pages do not cross, as transfers have shown; now and then one is tried again.",
        len(snapshot.closed_links),
    )
    yield GaugeMetricFamily(
        "slipstream:incompatible_worker_pairs",
        "Pairs of a prefill and a decode worker whose KV pages do not fit together, so that they are never paired.",
        sum(refused.count for refused in snapshot.refused_pairs),
    )
    yield GaugeMetricFamily(
        "slipstream:drifting_fields",
        "Fields (versions, instruction set, dtype) in which workers of one model version, or the router, differ.",
        len(snapshot.drift),
    )
    yield from prefix_index_families(snapshot.prefix_index)
    yield from forecast_families(snapshot.output_forecasts)
    yield from service_time_families(snapshot.workers)
    yield from worker_families(snapshot.workers)
    yield from step_families(snapshot.workers)
    yield from version_families(snapshot.versions)


def gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value)


def counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value)


def histogram(name: str, help_text: str, counts: Histogram) -> Metric:
    return HistogramMetricFamily(name, help_text, counts.buckets(), counts.total)


def request_families(front: ModelCounts, snapshot: Snapshot) -> Iterator[Metric]:
    """What vLLM reports, too."""
    yield gauge("vllm:num_requests_running", "Requests placed on workers.", snapshot.num_running)
    yield gauge("vllm:num_requests_waiting", "Requests in the router's queue.", snapshot.num_waiting)
    yield gauge(
        "vllm:kv_cache_usage_perc", "Share of the decode workers' KV pages in use; 1 is all.", kv_usage(snapshot)
    )
    yield counter(
        "vllm:prompt_tokens",
        "Prompt tokens of ended requests; each choice of an answer is one.",
        front.num_prompt_tokens,
    )
    yield counter("vllm:generation_tokens", "Tokens generated.", front.num_output_tokens)
    yield counter("vllm:prefix_cache_queries", "Prompt tokens looked up in prefix caches.", front.num_prompt_tokens)
    yield counter("vllm:prefix_cache_hits", "Prompt tokens found in prefix caches.", front.num_cached_tokens)
    success = CounterMetricFamily(
        "vllm:request_success",
        "Ended requests by finish reason; each choice of an answer is one.",
        labels=["finished_reason"],
    )
    for reason in ("stop", "length", "abort", "error"):
        success.add_metric([reason], front.ends[reason])
    yield success


def by_version(counts: ModelCounts, name: str, help_text: str, of: Callable[[Latencies], Histogram]) -> Metric:
    """A histogram for each version of the model that has been used."""
    family = HistogramMetricFamily(name, help_text, labels=["version"])
    latencies = counts.latencies.items()
    for version, observed in latencies:
        found = of(observed)
        if version or found.count or len(latencies) == 1:
            family.add_metric([version], found.buckets(), found.total)
    return family


def latency_families(counts: ModelCounts) -> Iterator[Metric]:
    gap = "Seconds between output tokens."
    yield by_version(
        counts, "vllm:time_to_first_token_seconds", "Seconds to the first token.", lambda of: of.first_token_s
    )
    yield by_version(counts, "vllm:inter_token_latency_seconds", gap, lambda of: of.next_token_s)
    yield by_version(counts, "vllm:time_per_output_token_seconds", gap, lambda of: of.next_token_s)  # its older name
    yield by_version(
        counts,
        "vllm:request_time_per_output_token_seconds",
        "Mean gap of each request.",
        lambda of: of.mean_next_token_s,
    )
    yield by_version(counts, "vllm:e2e_request_latency_seconds", "Seconds from request to end.", lambda of: of.whole_s)
    yield by_version(counts, "vllm:request_queue_time_seconds", "Seconds in the queue.", lambda of: of.queue_s)
    yield by_version(
        counts,
        "vllm:request_prefill_time_seconds",
        "Seconds from placement to the first token.",
        lambda of: of.prefill_s,
    )
    yield by_version(
        counts, "vllm:request_decode_time_seconds", "Seconds from the first token to the end.", lambda of: of.decode_s
    )


def size_families(front: ModelCounts) -> Iterator[Metric]:
    """Parameters and results of requests."""
    yield histogram("vllm:request_prompt_tokens", "Prompt tokens of each request.", front.prompt_tokens)
    yield histogram("vllm:request_generation_tokens", "Output tokens of each.", front.output_tokens)
    yield histogram("vllm:request_params_n", "The parameter n.", front.choices)
    yield histogram("vllm:request_params_best_of", "The parameter best_of, which equals n.", front.choices)
    yield histogram("vllm:request_params_max_tokens", "The most output tokens that each may have.", front.max_tokens)
    yield counter("slipstream:clamped_requests", "Requests for more output than there was room for.", front.num_clamped)


def dispatch_families(snapshot: Snapshot) -> Iterator[Metric]:
    totals = snapshot.totals
    depth: Counter[str] = Counter({"0": 0})  # the usual class is there when nothing waits, too
    for priority, count in snapshot.queue_depth.items():
        depth[str(min(max(priority, -MAX_PRIORITY_SHOWN), MAX_PRIORITY_SHOWN))] += count
    yield labelled_gauge("slipstream:queue_depth", "Requests in the queue by priority.", "priority", depth)
    yield waits_by_class(snapshot)
    yield labelled_gauge("slipstream:requests", "Requests by where they are.", "phase", snapshot.num_requests_by_phase)
    roles = Counter(worker.role for worker in snapshot.workers)
    counts = {"prefill": roles["prefill"], "decode": roles["decode"]}
    yield labelled_gauge("slipstream:workers", "Connected workers.", "role", counts)
    yield labelled_counter("slipstream:placements", "Decisions where a request runs.", "reason", totals.placements)
    yield labelled_counter("slipstream:retries", "Attempts that had to be repeated.", "cause", totals.retries)
    yield labelled_counter("slipstream:rejections", "Requests not admitted.", "reason", totals.rejections)
    yield labelled_counter("slipstream:finishes", "Admitted requests by outcome.", "outcome", totals.finishes)
    yield CounterMetricFamily("slipstream:transfers", "Hand-offs completed.", value=totals.num_transfers)
    yield CounterMetricFamily("slipstream:transfer_bytes", "KV bytes handed off.", value=totals.transfer_bytes)
    yield CounterMetricFamily("slipstream:transfer_seconds", "Time of hand-offs.", value=totals.transfer_s)
    yield labelled_counter(
        "slipstream:migrations", "Running requests moved between decode workers.", "result", totals.migrations
    )
    yield labelled_counter(
        "slipstream:sessions", "Answers of conversations, by what followed.", "event", totals.sessions
    )
    yield CounterMetricFamily(
        "slipstream:rebalanced", "Moves begun so that answers come faster.", value=totals.num_rebalanced
    )
    pauses = HistogramMetricFamily(
        "slipstream:migration_pause_seconds", "Seconds without a token for requests that moved."
    )
    pauses.add_metric([], totals.migration_pauses.buckets(), totals.migration_pauses.total_s)
    yield pauses


def waits_by_class(snapshot: Snapshot) -> Metric:
    waits = SummaryMetricFamily(
        "slipstream:queue_wait_seconds", "Seconds from being queued to the first placement.", labels=["priority"]
    )
    for priority, count in sorted(snapshot.totals.num_placed.items()):
        waits.add_metric([str(priority)], count, snapshot.totals.wait_s[priority])
    return waits
