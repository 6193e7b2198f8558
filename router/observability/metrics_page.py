"""The page that Prometheus scrapes: the counts of the front and snapshots of the dispatchers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slipstream.router.access.access import Access
from slipstream.router.access.usage import UsageCounts
from slipstream.router.observability.front_counts import FrontMetrics
from slipstream.router.observability.metric_families import add_model, labelled_counter
from slipstream.router.observability.model_metrics import model_families
from slipstream.router.observability.store_metrics import store_families
from slipstream.router.observability.tracing.tracer import TraceCounts
from slipstream.router.status.status import Snapshot
from slipstream.router.store.object_store import ObjectStore

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_TENANTS = 100
OTHERS = "(others)"  # cannot be the name of a tenant


class MetricsPage(Collector):
    """Renders the counts of the front and a snapshot of each model's dispatcher in Prometheus' text form. The series of
    a model end with it, and clients cannot make any up, because its name is one of `models`."""

    def __init__(
        self,
        front: FrontMetrics,
        models: Callable[[], Sequence[str]],
        snapshot_of: Callable[[str], Snapshot],
        num_connections: Callable[[], int],
        access: Access,
        traces: TraceCounts | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        self._front = front
        self._store = store
        self._models = models
        self._snapshot_of = snapshot_of
        self._num_connections = num_connections
        self._access = access
        self._traces = traces
        self._others: list[Callable[[], Iterable[Metric]]] = []
        self._shown: Sequence[Metric] = ()  # what is being rendered
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def add(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Shows these as well from now on."""
        self._others.append(families)

    async def render(self) -> bytes:
        """In pieces, between which the event loop turns: a model takes 3 ms, and others' tokens must not wait for all
        of them."""
        merged: dict[str, Metric] = {}
        names = self._models()
        for name in names:
            if name in self._models():  # it may have been removed meanwhile
                add_model(merged, name, model_families(self._front.of(name), self._snapshot_of(name)))
                await asyncio.sleep(0)
        parts = []
        of_store = await store_families(self._store, self._front) if self._store is not None else ()
        others = [family for families in self._others for family in families()]
        for family in (*merged.values(), *self.front_families(), *of_store, *others):
            self._shown = (family,)
            parts.append(generate_latest(self._registry))
            if len(names) > 1:
                await asyncio.sleep(0)
        return b"".join(parts)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        """What is being rendered; the registry calls this."""
        return self._shown

    def front_families(self) -> Iterator[Metric]:
        """The metrics that are not of one model."""
        responses = CounterMetricFamily("slipstream:http_responses", "Answers by HTTP status.", labels=["status"])
        for status, count in sorted(self._front.responses.items()):
            responses.add_metric([str(status)], count)
        yield responses
        yield labelled_counter(
            "slipstream:ignored_fields", "Requests with an unknown field.", "field", self._front.ignored_fields
        )
        yield GaugeMetricFamily(
            "slipstream:http_connections", "Open client connections.", value=self._num_connections()
        )
        if self._traces is not None:
            traces = self._traces
            ends = {"exported": traces.num_exported, "dropped": traces.num_dropped, "failed": traces.num_failed}
            yield labelled_counter("slipstream:traces", "Requests traced, by what became of it.", "outcome", ends)
        yield from access_families(self._access)


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
