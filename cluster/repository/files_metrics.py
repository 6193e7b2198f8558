"""The metrics of a model's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slipstream.cluster.repository.files_watch import FilesWatch
from slipstream.router.protocol.model_id import SEPARATOR


class FilesPage(Collector):
    """With several models, versions are named `model@version`."""

    def __init__(self, watches: Mapping[str, FilesWatch]) -> None:
        """`watches` by model; models may come and go."""
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        changed = GaugeMetricFamily(
            "slipstream:model_files_changed",
            "1 if the files of a version that is served are no longer those that it was loaded from.",
            labels=["version"],
        )
        refused = CounterMetricFamily(
            "slipstream:model_files_refused",
            "Starts of workers and routers that failed because they found other files than those of the version.",
            labels=["version"],
        )
        watches = dict(self._watches)
        for model, watch in watches.items():
            prefix = f"{model}{SEPARATOR}" if len(watches) > 1 else ""
            for version in watch.versions:
                changed.add_metric([f"{prefix}{version}"], float(version in watch.changed))
            for version, count in sorted(watch.num_refused.items()):
                refused.add_metric([f"{prefix}{version}"], count)
        yield changed
        yield refused
