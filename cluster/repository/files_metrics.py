"""The metrics of a model's files."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slipstream.cluster.repository.files_watch import FilesWatch


class FilesPage(Collector):
    def __init__(self, watch: FilesWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        changed = GaugeMetricFamily(
            "slipstream:model_files_changed",
            "1 if the files of a version that is served are no longer those that it was loaded from.",
            labels=["version"],
        )
        for version in self._watch.versions:
            changed.add_metric([version], float(version in self._watch.changed))
        yield changed
        refused = CounterMetricFamily(
            "slipstream:model_files_refused",
            "Starts of workers and routers that failed because they found other files than those of the version.",
            labels=["version"],
        )
        for version, count in sorted(self._watch.num_refused.items()):
            refused.add_metric([version], count)
        yield refused
