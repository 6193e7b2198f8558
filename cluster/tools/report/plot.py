"""The content of a plot; `svg.py` draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

PlotKind = Literal["line", "step", "bar", "cdf", "points"]


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one set of bars. `xs` and `ys` have the same length, except that in a `cdf` the `xs` are samples and
    `ys` is empty. The `xs` of bars may be words. `lows` and `highs` are the ends of error bars, if there are any."""

    name: str
    xs: Sequence[float | str]
    ys: Sequence[float] = ()
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the plot at a value of the y axis (an SLO) or of the x axis (an event)."""

    at: float
    label: str
    axis: Literal["x", "y"] = "y"


@dataclass(frozen=True, slots=True)
class Plot:
    """Labels name the unit. A `cdf` has shares from 0 to 1 as its y axis. Values that are not finite leave a gap."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: PlotKind = "line"
    log_x: bool = False
    marks: Sequence[Mark] = ()

    def __post_init__(self) -> None:
        for series in self.series:
            where = f"plot {self.title!r}, series {series.name!r}"
            if self.kind != "cdf" and len(series.xs) != len(series.ys):
                raise ValueError(f"{where}: {len(series.xs)} xs and {len(series.ys)} ys")
            if len(series.lows) != len(series.highs) or len(series.lows) not in (0, len(series.ys)):
                raise ValueError(f"{where}: error bars need a low and a high for each point")
            if self.kind != "bar" and any(isinstance(x, str) for x in series.xs):
                raise ValueError(f"{where}: only bars have words on the x axis")

    def json(self) -> dict[str, Any]:
        return {
            "kind": "plot",
            "title": self.title,
            "x_label": self.x_label,
            "y_label": self.y_label,
            "plot": self.kind,
            "series": [_series_json(series) for series in self.series],
            "marks": [{"at": mark.at, "label": mark.label, "axis": mark.axis} for mark in self.marks],
        }


def _series_json(series: Series) -> dict[str, Any]:
    content = {"name": series.name, "xs": _finite(series.xs), "ys": _finite(series.ys)}
    return content | ({"lows": _finite(series.lows), "highs": _finite(series.highs)} if series.lows else {})


def _finite(values: Sequence[float | str]) -> list[str | float | None]:
    return [
        value if isinstance(value, str) else float(value) if math.isfinite(value) else None  # numpy's, too
        for value in values
    ]
