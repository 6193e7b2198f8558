"""Makes metric families of plain numbers, and one of those of several models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

MODEL_LABEL = "model_name"


def of_all_models(families: Mapping[str, Iterable[Metric]]) -> Iterator[Metric]:
    """The families of each model, by its name, as one series of families whose samples have the name as a label.
    Prometheus wants all samples of a family in one place."""
    merged: dict[str, Metric] = {}
    for model, of_model in families.items():
        for family in of_model:
            samples = [sample._replace(labels={MODEL_LABEL: model, **sample.labels}) for sample in family.samples]
            known = merged.setdefault(family.name, family)
            if known is family:
                family.samples = samples
            else:
                known.samples.extend(samples)
    yield from merged.values()


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
