"""Metrics of the store and of batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slipstream.router.observability.front_counts import FrontMetrics
from slipstream.router.observability.metric_families import labelled_counter
from slipstream.router.store.object_store import ObjectStore
from slipstream.router.store.store_errors import StoreError


async def store_families(store: ObjectStore, front: FrontMetrics) -> list[Metric]:
    """Those of a store that is configured; without its contents if it cannot be read. `front` has the errors of all
    front processes."""
    return [*await _contents(store), *_counted(front.store_errors, front.batch_lines)] if store.is_configured else []


async def _contents(store: ObjectStore) -> list[Metric]:
    try:
        counts = await store.counts()
    except StoreError:
        return []
    objects = GaugeMetricFamily("slipstream:store_objects", "Objects in the store.", labels=["kind"])
    for kind, num in counts.by_kind.items():
        objects.add_metric([kind], num)
    removed = CounterMetricFamily(
        "slipstream:store_removed", "Objects that left the store by its limits.", labels=["reason"]
    )
    removed.add_metric(["evicted"], counts.num_evicted)
    removed.add_metric(["expired"], counts.num_expired)
    size = GaugeMetricFamily("slipstream:store_bytes", "Bytes in the store, files included.", value=counts.num_bytes)
    return [size, objects, removed]


def _counted(errors: Counter[str], lines: Counter[str]) -> Iterator[Metric]:
    yield labelled_counter("slipstream:store_errors", "Calls of the store that failed.", "call", errors)
    yield labelled_counter("slipstream:batch_lines", "Lines of batches, by what became of them.", "outcome", lines)
