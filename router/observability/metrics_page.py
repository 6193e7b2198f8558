"""The page that Prometheus scrapes: the counts of the front and a snapshot of the dispatcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from slipstream.router.access.access import Access
from slipstream.router.access.usage import UsageCounts
from slipstream.router.observability.front_counts import FrontMetrics, Histogram, Latencies
from slipstream.router.observability.placement_metrics import forecast_families, service_time_families
from slipstream.router.observability.prefix_metrics import prefix_index_families
from slipstream.router.observability.step_metrics import STEP_COUNTERS, step_families
from slipstream.router.observability.tracing.tracer import TraceCounts
from slipstream.router.observability.version_metrics import version_families
from slipstream.router.status.status import Snapshot, WorkerStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_TENANTS = 100
OTHERS = "(others)"  # cannot be the name of a tenant
MAX_PRIORITY_SHOWN = 8  # and -8: clients choose priorities, and each value would become a time series for ever


class MetricsPage(Collector):
    """Renders the counts of the front and a snapshot of the service in Prometheus' text form."""

    def __init__(
        self,
        model: str,
        front: FrontMetrics,
        snapshot: Callable[[], Snapshot],
        num_connections: Callable[[], int],
        access: Access,
        traces: TraceCounts | None = None,
    ) -> None:
        self._model = model
        self._front = front
        self._counts = front.of(model)
        self._snapshot = snapshot
        self._num_connections = num_connections
        self._access = access
        self._traces = traces
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics; the registry calls this at every scrape."""
        snapshot = self._snapshot()
        yield from self._requests(snapshot)
        yield from self._latencies()
        yield from self._sizes()
        yield from self._cluster(snapshot)
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
        yield from step_families(self._model, snapshot.workers)
        yield from version_families(snapshot.versions)
        yield from access_families(self._access)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, help_text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _histogram(self, name: str, help_text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, help_text, labels=["model_name"])
        family.add_metric([self._model], histogram.buckets(), histogram.total)
        return family

    def _requests(self, snapshot: Snapshot) -> Iterator[Metric]:
        front = self._counts
        yield self._gauge("vllm:num_requests_running", "Requests placed on workers.", snapshot.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the router's queue.", snapshot.num_waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Share of the decode workers' KV pages in use; 1 is all.", kv_usage(snapshot)
        )
        yield self._counter(
            "vllm:prompt_tokens",
            "Prompt tokens of ended requests; each choice of an answer is one.",
            front.num_prompt_tokens,
        )
        yield self._counter("vllm:generation_tokens", "Tokens generated.", front.num_output_tokens)
        yield self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in prefix caches.", front.num_prompt_tokens
        )
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens found in prefix caches.", front.num_cached_tokens)
        success = CounterMetricFamily(
            "vllm:request_success",
            "Ended requests by finish reason; each choice of an answer is one.",
            labels=["model_name", "finished_reason"],
        )
        for reason in ("stop", "length", "abort", "error"):
            success.add_metric([self._model, reason], front.ends[reason])
        yield success
        responses = CounterMetricFamily("slipstream:http_responses", "Answers by HTTP status.", labels=["status"])
        for status, count in sorted(self._front.responses.items()):
            responses.add_metric([str(status)], count)
        yield responses

    def _by_version(self, name: str, help_text: str, of: Callable[[Latencies], Histogram]) -> Metric:
        """A histogram for each version of the model that has been used."""
        family = HistogramMetricFamily(name, help_text, labels=["model_name", "version"])
        for version, latencies in self._counts.latencies.items():
            histogram = of(latencies)
            if version or histogram.count or len(self._counts.latencies.items()) == 1:
                family.add_metric([self._model, version], histogram.buckets(), histogram.total)
        return family

    def _latencies(self) -> Iterator[Metric]:
        gap = "Seconds between output tokens."
        yield self._by_version(
            "vllm:time_to_first_token_seconds", "Seconds to the first token.", lambda of: of.first_token_s
        )
        yield self._by_version("vllm:inter_token_latency_seconds", gap, lambda of: of.next_token_s)
        yield self._by_version("vllm:time_per_output_token_seconds", gap, lambda of: of.next_token_s)  # its older name
        yield self._by_version(
            "vllm:request_time_per_output_token_seconds", "Mean gap of each request.", lambda of: of.mean_next_token_s
        )
        yield self._by_version(
            "vllm:e2e_request_latency_seconds", "Seconds from request to end.", lambda of: of.whole_s
        )
        yield self._by_version("vllm:request_queue_time_seconds", "Seconds in the queue.", lambda of: of.queue_s)
        yield self._by_version(
            "vllm:request_prefill_time_seconds", "Seconds from placement to the first token.", lambda of: of.prefill_s
        )
        yield self._by_version(
            "vllm:request_decode_time_seconds", "Seconds from the first token to the end.", lambda of: of.decode_s
        )

    def _sizes(self) -> Iterator[Metric]:
        """Parameters and results of requests."""
        front = self._counts
        yield self._histogram("vllm:request_prompt_tokens", "Prompt tokens of each request.", front.prompt_tokens)
        yield self._histogram("vllm:request_generation_tokens", "Output tokens of each.", front.output_tokens)
        yield self._histogram("vllm:request_params_n", "The parameter n.", front.choices)
        yield self._histogram("vllm:request_params_best_of", "The parameter best_of, which equals n.", front.choices)
        yield self._histogram(
            "vllm:request_params_max_tokens", "The most output tokens that each may have.", front.max_tokens
        )
        yield self._counter(
            "slipstream:clamped_requests", "Requests for more output than there was room for.", front.num_clamped
        )
        yield labelled_counter(
            "slipstream:ignored_fields", "Requests with an unknown field.", "field", self._front.ignored_fields
        )

    def _cluster(self, snapshot: Snapshot) -> Iterator[Metric]:
        totals = snapshot.totals
        depth: Counter[str] = Counter()
        for priority, count in snapshot.queue_depth.items():
            depth[str(min(max(priority, -MAX_PRIORITY_SHOWN), MAX_PRIORITY_SHOWN))] += count
        yield labelled_gauge("slipstream:queue_depth", "Requests in the queue by priority.", "priority", depth)
        yield waits_by_class(snapshot)
        yield labelled_gauge(
            "slipstream:requests", "Requests by where they are.", "phase", snapshot.num_requests_by_phase
        )
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
        yield CounterMetricFamily(
            "slipstream:rebalanced", "Moves begun so that answers come faster.", value=totals.num_rebalanced
        )
        pauses = HistogramMetricFamily(
            "slipstream:migration_pause_seconds", "Seconds without a token for requests that moved."
        )
        pauses.add_metric([], totals.migration_pauses.buckets(), totals.migration_pauses.total_s)
        yield pauses
        yield GaugeMetricFamily(
            "slipstream:http_connections", "Open client connections.", value=self._num_connections()
        )
        if self._traces is not None:
            traces = self._traces
            ends = {"exported": traces.num_exported, "dropped": traces.num_dropped, "failed": traces.num_failed}
            yield labelled_counter("slipstream:traces", "Requests traced, by what became of it.", "outcome", ends)


def waits_by_class(snapshot: Snapshot) -> Metric:
    waits = SummaryMetricFamily(
        "slipstream:queue_wait_seconds", "Seconds from being queued to the first placement.", labels=["priority"]
    )
    for priority, count in sorted(snapshot.totals.num_placed.items()):
        waits.add_metric([str(priority)], count, snapshot.totals.wait_s[priority])
    return waits


def access_families(access: Access) -> Iterator[Metric]:
    """Metrics of callers and tenants. Tenants are those of the key file; beyond `MAX_TENANTS` the smallest ones are
    summed up as one."""
    keys = access.keys
    yield labelled_counter(
        "slipstream:unauthenticated", "Requests without a valid API key.", "reason", keys.num_unauthenticated
    )
    limited = CounterMetricFamily(
        "slipstream:rate_limited", "Requests over a limit of their API key.", labels=["tenant", "limit"]
    )
    by_tenant: dict[str, UsageCounts] = {}
    for account, counts in access.usage:
        by_tenant.setdefault(account.tenant, UsageCounts()).add(counts)
    largest = sorted(by_tenant, key=lambda tenant: by_tenant[tenant].num_tokens, reverse=True)
    shown = {tenant: tenant if tenant in largest[:MAX_TENANTS] else OTHERS for tenant in by_tenant}
    refused: Counter[tuple[str, str]] = Counter()
    for (tenant, limit), count in access.num_limited.items():
        refused[shown.get(tenant, OTHERS), limit] += count
    for labels, count in sorted(refused.items()):
        limited.add_metric(labels, count)
    yield limited
    tokens = CounterMetricFamily("slipstream:tenant_tokens", "Tokens of each tenant.", labels=["tenant", "kind"])
    sums: dict[str, UsageCounts] = {}
    for tenant, counts in by_tenant.items():
        sums.setdefault(shown[tenant], UsageCounts()).add(counts)
    for tenant, counts in sorted(sums.items()):
        tokens.add_metric([tenant, "prompt"], counts.num_prompt_tokens)
        tokens.add_metric([tenant, "cached"], counts.num_cached_tokens)
        tokens.add_metric([tenant, "output"], counts.num_output_tokens)
    yield tokens
    if keys.is_on:
        yield GaugeMetricFamily("slipstream:api_keys", "Keys that are known.", value=keys.num_keys)
        yield labelled_counter(
            "slipstream:api_key_reloads", "Changes of the key file, taken up or not.", "outcome", keys.num_reloads
        )


def labelled_gauge(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def labelled_counter(name: str, help_text: str, label: str, values: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def worker_families(workers: Sequence[WorkerStatus]) -> Iterator[Metric]:
    """Metrics per worker: its credits, its pages by state, and its own counters."""
    credits = GaugeMetricFamily(
        "slipstream:worker_credits", "What a worker could still take on.", labels=["worker", "role", "kind"]
    )
    pages = GaugeMetricFamily(
        "slipstream:worker_pages", "The ledger: KV pages by state.", labels=["worker", "role", "state"]
    )
    leases = GaugeMetricFamily(
        "slipstream:worker_leases", "Hand-offs under way at a worker.", labels=["worker", "role"]
    )
    counted = CounterMetricFamily(
        "slipstream:worker_events", "What workers count, since they started.", labels=["worker", "role", "event"]
    )
    for worker in workers:
        who = [worker.peer.name, worker.role]
        credits.add_metric([*who, "slots"], worker.free_slots)
        credits.add_metric([*who, "pages"], worker.free_pages)
        credits.add_metric([*who, "tokens"], worker.free_tokens)
        if worker.stats is not None:
            by_state = dict(worker.stats.pages)
            for state, count in by_state.items():
                pages.add_metric([*who, state], count)
            for event, value in worker.stats.counters:
                if event == "leases_held":  # the only one that can decrease
                    leases.add_metric(who, value)
                elif not event.startswith(STEP_COUNTERS):
                    counted.add_metric([*who, event], value)
    return iter((credits, pages, leases, counted))


def kv_usage(snapshot: Snapshot) -> float:
    """The share of the decode workers' pages that are neither free nor merely cached. Pages above the limit of a worker
    do not count."""
    num_pages = num_idle = 0
    for worker in snapshot.workers:
        if worker.role == "decode" and worker.stats is not None:
            by_state = dict(worker.stats.pages)
            num_pages += worker.num_pages - by_state.get("withheld", 0)
            num_idle += by_state.get("free", 0) + by_state.get("cached", 0)
    return 1 - min(num_idle / num_pages, 1) if num_pages else 0.0
