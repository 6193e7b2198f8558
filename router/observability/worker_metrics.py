"""Prometheus metrics of each worker: its credits, its pages and what it counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slipstream.router.observability.step_metrics import STEP_COUNTERS
from slipstream.router.observability.usage_metrics import usage_families
from slipstream.router.status.status import Snapshot, WorkerStatus


def worker_families(workers: Sequence[WorkerStatus]) -> Iterator[Metric]:
    """Metrics per worker: its credits, its pages by state, and its own counters."""
    credits = GaugeMetricFamily(
        "slipstream:worker_credits", "What a worker could still take on.", labels=["worker", "role", "kind"]
    )
    pages = GaugeMetricFamily(
        "slipstream:worker_pages", "The ledger: KV pages by state.", labels=["worker", "role", "state"]
    )
    counted = CounterMetricFamily(
        "slipstream:worker_events", "What workers count, since they started.", labels=["worker", "role", "event"]
    )
    named = _named_families()
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
                if event in named:
                    named[event].add_metric(who, value)
                elif not event.startswith(STEP_COUNTERS):
                    counted.add_metric([*who, event], value)
    return iter((credits, pages, *named.values(), counted, *usage_families(workers)))


def _named_families() -> dict[str, GaugeMetricFamily | CounterMetricFamily]:
    """What workers count that is no number of events, each a metric of its own, by its name in their counters."""
    labels = ["worker", "role"]
    return {
        "leases_held": GaugeMetricFamily("slipstream:worker_leases", "Hand-offs under way at a worker.", labels=labels),
        "expert_imbalance": GaugeMetricFamily(
            "slipstream:worker_expert_imbalance",
            "With expert parallelism: the rows of the busiest rank over those of the mean one.",
            labels=labels,
        ),
        "retained_pages": GaugeMetricFamily(
            "slipstream:worker_retained_pages",
            "Pages that are held for conversations that will probably come back, in use or cached.",
            labels=labels,
        ),
    }


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
