"""Makes metric families of plain numbers, and one of those of several models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

MODEL_LABEL = "model_name"


def add_model(merged: dict[str, Metric], model: str, families: Iterable[Metric]) -> None:
    """Adds the families of a model, whose samples get its name as a label, to those of other models by their names:
    Prometheus wants all samples of a family in one place."""
    for family in families:
        samples = [sample._replace(labels={MODEL_LABEL: model, **sample.labels}) for sample in family.samples]
        known = merged.setdefault(family.name, family)
        if known is family:
            family.samples = samples
        else:
            known.samples.extend(samples)


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
