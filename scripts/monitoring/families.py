"""All metric families of the router and the driver, from the code that makes them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from slipstream.cluster.admin_api.planner_routes import PlannerPage
from slipstream.cluster.repository.files_metrics import FilesPage
from slipstream.router.access.access import Access
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.kserve_config import TensorMetricsConfig
from slipstream.router.machine.gpu_reader import GpuReading
from slipstream.router.observability.certificate_metrics import certificate_family
from slipstream.router.observability.endpoint_metrics import EndpointCounts
from slipstream.router.observability.front_counts import FrontMetrics, ModelCounts
from slipstream.router.observability.metric_families import MODEL_LABEL
from slipstream.router.observability.metrics_page import MetricsPage
from slipstream.router.observability.model_metrics import model_families
from slipstream.router.observability.store_metrics import store_families
from slipstream.router.observability.tensor_metrics.instance_usage import instance_usage_families
from slipstream.router.observability.tensor_metrics.machine_families import add_machine_families
from slipstream.router.observability.tensor_metrics.machine_reading import MachineReading
from slipstream.router.observability.tensor_metrics.metric_lines import MetricLines
from slipstream.router.observability.tensor_metrics.tensor_metrics_page import TensorMetricsPage
from slipstream.router.observability.tracing.tracer import TraceCounts
from slipstream.router.status.status import Snapshot, Totals
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.custom_metrics import CustomFamily
from slipstream.router.tensors.infer_service import ModelStatistics
from slipstream.router.tensors.latencies import LatencyHistogram, LatencySummaries
from slipstream.router.tensors.version_metrics import CacheMetrics, VersionMetrics

UNITS = (
    ("seconds", "seconds"),
    ("secs", "seconds"),
    ("_us", "microseconds"),
    ("per_model", "microseconds"),
    ("_ms", "milliseconds"),
    ("bytes", "bytes"),
    ("tokens", "tokens"),
    ("pages", "pages"),
    ("perc", "share"),
    ("utilization", "share"),
    ("attainment", "share"),
    ("power_usage", "watts"),
    ("power_limit", "watts"),
    ("watts", "watts"),
    ("celsius", "degrees Celsius"),
    ("energy_consumption", "joules"),
)


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """`name` is that of the family as its samples have it, with `_total` where Prometheus' library adds it."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    source: str  # router, driver or tensor

    @property
    def unit(self) -> str:
        base = self.name.removesuffix("_total")
        return next((unit for end, unit in UNITS if base.endswith(end) and "_num_" not in base), "")

    @property
    def samples(self) -> dict[str, frozenset[str]]:
        """The labels of each sample by its name."""
        labels = frozenset(self.labels)
        parts = {f"{self.name}_sum": labels, f"{self.name}_count": labels}
        if self.kind == "histogram":
            return {f"{self.name}_bucket": labels | {"le"}, **parts}
        if self.kind == "summary":
            return {self.name: labels | {"quantile"}, **parts}
        return {self.name: labels}


@dataclass(slots=True)
class SampleSource:
    """Tensor models with all metrics that there are."""

    versions: list[VersionMetrics] = field(default_factory=list)

    def version_metrics(self) -> Sequence[VersionMetrics]:
        return self.versions

    def custom_families(self) -> Sequence[CustomFamily]:
        return ()

    def cache_metrics(self) -> CacheMetrics | None:
        return CacheMetrics(1, 0, 0, 0, 0, 0)


def labels_by_sample() -> dict[str, Set[str]]:
    return {name: labels for one in all_metrics() for name, labels in one.samples.items()}


def all_metrics() -> list[MetricDescription]:
    """By source and name."""
    found = [*_of_router(), *_of_driver(), *_of_tensor_models()]
    names = [one.name for one in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"metrics with two descriptions: {sorted(twice)}")
    return sorted(found, key=lambda one: (one.source, one.name))


def described(families: Iterable[Metric], source: str, *more_labels: str) -> Iterator[MetricDescription]:
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = (*more_labels, *cast(Any, family)._labelnames)
        yield MetricDescription(name, family.type, family.documentation, labels, source)


def _of_router() -> Iterator[MetricDescription]:
    front, access = FrontMetrics(), Access(AccessConfig(keys_file="keys.yaml"))
    snapshot = Snapshot({}, 0, {}, (), Totals())
    page = MetricsPage(front, lambda: (), lambda _: snapshot, lambda: 0, access, TraceCounts())
    yield from described(model_families(ModelCounts(), snapshot), "router", MODEL_LABEL)
    yield from described(page.front_families(), "router")
    yield from described(EndpointCounts().families(), "router")
    yield from described(instance_usage_families(()), "router")
    yield from described((certificate_family({}),), "router")
    yield from described(asyncio.run(store_families(cast(Any, SampleStore()), front)), "router")


class SampleStore:
    """A store that is configured and empty."""

    is_configured = True

    async def counts(self) -> Any:
        return SimpleNamespace(by_kind={}, num_evicted=0, num_expired=0, num_bytes=0)


def _of_driver() -> Iterator[MetricDescription]:
    state = SimpleNamespace(num_prefill=1, num_decode=1)
    one = SimpleNamespace(state=lambda: state)
    fleet = SimpleNamespace(state=lambda: state, models=("a", "b"), of_model=lambda _: one)
    record = SimpleNamespace(decision=SimpleNamespace(seen=(), alternatives=(), reason="holds"))
    log = SimpleNamespace(
        num_by_reason=Counter(),
        num_actions=Counter(),
        num_failed=0,
        num_errors=0,
        last=record,
        latest_of={"a": record},
        held_s=lambda model: 0.0,
    )
    yield from described(PlannerPage(cast(Any, log), cast(Any, fleet)).collect(), "driver")
    yield from described(FilesPage({}).collect(), "driver")


def _of_tensor_models() -> Iterator[MetricDescription]:
    version = VersionMetrics(
        ModelStatistics("model", "1"),
        uses_response_cache=True,
        summaries=LatencySummaries(),
        first_responses=LatencyHistogram([1.0]),
    )
    config = TensorMetricsConfig(port=0, cpu=False, gpu=False, summary_latencies=True)
    with RegionPool() as pool:
        text = TensorMetricsPage(SampleSource([version]), pool, config).render().decode()
    machine = MetricLines()
    add_machine_families(machine, MachineReading(0.5, 2, 1, (GpuReading("GPU-1", 0.5, 2, 1, 1.0, 1.0, math.pi),)))
    for family in text_string_to_metric_families(text + machine.text().decode()):
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels)
        names = tuple(label for label in labels if label not in ("le", "quantile"))
        yield MetricDescription(family.name, family.type, family.documentation, names, "tensor")
