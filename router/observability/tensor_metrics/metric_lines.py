"""Metrics in Prometheus' text form, whose names are given as they are: counters get no suffix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

Labels = Sequence[tuple[str, str]]


class MetricLines:
    """All samples of a family are added together."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, description: str, kind: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """A family of counters or gauges; nothing if it has no samples."""
        lines = [f"{name}{label_text(labels)} {number(value)}" for labels, value in samples]
        if lines:
            self.head(name, description, kind)
            self._lines += lines

    def head(self, name: str, description: str, kind: str) -> None:
        escaped = description.replace("\\", r"\\").replace("\n", r"\n")
        self._lines += (f"# HELP {name} {escaped}", f"# TYPE {name} {kind}")

    def summary(self, name: str, labels: Labels, count: int, total: float, quantiles: Labels) -> None:
        """A sample of a family whose head is there. `quantiles` are pairs of the quantile and its value, as texts."""
        text = label_text(labels)
        self._lines += (f"{name}_count{text} {count}", f"{name}_sum{text} {number(total)}")
        for quantile, value in quantiles:
            self._lines.append(f"{name}{label_text([*labels, ('quantile', quantile)])} {value}")

    def histogram(
        self, name: str, labels: Labels, limits: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """A sample of a family whose head is there. `counts`, one more than `limits`, do not include each other."""
        text = label_text(labels)
        up_to = list(accumulate(counts))
        self._lines += (f"{name}_count{text} {up_to[-1]}", f"{name}_sum{text} {number(total)}")
        for limit, count in zip((*map(number, limits), "+Inf"), up_to, strict=True):
            self._lines.append(f"{name}_bucket{label_text([*labels, ('le', limit)])} {count}")

    def text(self) -> bytes:
        return "".join(f"{line}\n" for line in self._lines).encode()


def label_text(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
