"""Draws plots as SVG without scripts: colours are CSS classes of the page, and a point shows its value by its
<title>."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from html import escape

from slipstream.cluster.tools.report.axis import Axis, tick_label
from slipstream.cluster.tools.report.plot import Plot, Series
from slipstream.cluster.tools.report.table import number

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 48
NUM_COLOURS = 8
MAX_POINTS = 600  # per line, as there are no more pixels
MAX_TITLES = 60  # points per line that show their value
MAX_DOTS = 2000
LETTER = 6.2  # the width of a letter in a tick's label
BAR_SHARE = 0.8  # of the room for a group of bars

Point = tuple[float, float]


def draw(plot: Plot) -> str:
    """The figure with title and legend, as a fragment of HTML."""
    drawing = _bars(plot) if plot.kind == "bar" else _curves(plot)
    legend = "".join(
        f"<span><i class='k{index % NUM_COLOURS}'></i>{escape(series.name)}</span>"
        for index, series in enumerate(plot.series)
        if series.name
    )
    return (
        f"<figure><h2>{escape(plot.title)}</h2><div class='legend'>{legend}</div>\n"
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(plot.title, quote=True)}'>\n"
        f"{drawing}\n</svg></figure>"
    )


def _curves(plot: Plot) -> str:
    curves = [_points(plot, series) for series in plot.series]
    marks_x = [mark.at for mark in plot.marks if mark.axis == "x"]
    marks_y = [mark.at for mark in plot.marks if mark.axis == "y"]
    xs = [x for curve in curves for x, _ in curve] + (marks_x if plot.kind != "cdf" else [])
    ys = [y for curve in curves for _, y in curve] + marks_y
    ys += [bound for series in plot.series for bound in (*series.lows, *series.highs)]
    across = Axis.over(xs, LEFT, WIDTH - RIGHT, plot.log_x)
    up = (
        Axis(0.0, 1.0, HEIGHT - BOTTOM, TOP)
        if plot.kind == "cdf"
        else Axis.over(ys, HEIGHT - BOTTOM, TOP, from_zero=True)
    )
    parts = [_frame(plot, up), _x_ticks(across)]
    for index, (series, curve) in enumerate(zip(plot.series, curves, strict=True)):
        drawn = [
            (across.place(x), up.place(y), x, y)
            for x, y in curve
            if math.isfinite(x) and math.isfinite(y) and (not plot.log_x or x > 0)
        ]
        parts.append(f"<g class='s s{index % NUM_COLOURS}'>")
        if plot.kind != "points":
            parts.append(f"<path d='{_path(curve, across, up, plot)}'/>")
        parts += _error_bars(series, across, up)
        radius = 2 if plot.kind == "points" else 3 if len(drawn) <= MAX_TITLES and plot.kind == "line" else 0
        step = max(1, len(drawn) // (MAX_DOTS if plot.kind == "points" else MAX_TITLES))
        for px, py, x, y in drawn[::step]:
            words = _title(plot, series.name, number(x), y)
            dot = f"<circle class='p' cx='{px:.1f}' cy='{py:.1f}' r='{radius}'/>" if radius else ""
            parts.append(f"<g>{dot}<circle class='h' cx='{px:.1f}' cy='{py:.1f}' r='7'/><title>{words}</title></g>")
        parts.append("</g>")
    for mark in plot.marks:
        label = escape(mark.label)
        if mark.axis == "y":
            y = up.place(mark.at)
            parts.append(f"<line class='m' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
            parts.append(f"<text class='ml' x='{WIDTH - RIGHT}' y='{y - 4:.1f}' text-anchor='end'>{label}</text>")
        elif across.low <= mark.at <= across.high:
            x = across.place(mark.at)
            parts.append(f"<line class='m' x1='{x:.1f}' x2='{x:.1f}' y1='{TOP}' y2='{HEIGHT - BOTTOM}'/>")
            parts.append(
                f"<text class='ml' x='{x:.1f}' y='{TOP + 4}' text-anchor='end' "
                f"transform='rotate(-90 {x:.1f} {TOP + 4}) translate(0 -4)'>{label}</text>"
            )
    return "\n".join(parts)


def _bars(plot: Plot) -> str:
    labels = list(dict.fromkeys(str(x) if isinstance(x, str) else tick_label(x) for s in plot.series for x in s.xs))
    ys = [y for series in plot.series for y in (*series.ys, *series.lows, *series.highs)]
    ys += [mark.at for mark in plot.marks if mark.axis == "y"]
    up = Axis.over(ys, HEIGHT - BOTTOM, TOP, from_zero=True)
    room = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    bar = room * BAR_SHARE / max(len(plot.series), 1)
    parts = [_frame(plot, up)]
    for place, label in enumerate(labels):
        x = LEFT + (place + 0.5) * room
        lines = textwrap.wrap(label, max(int(room / LETTER), 4), max_lines=2, placeholder="…") or [""]
        spans = "".join(
            f"<tspan x='{x:.1f}' y='{HEIGHT - BOTTOM + 14 + 12 * row}'>{escape(line)}</tspan>"
            for row, line in enumerate(lines)
        )
        parts.append(f"<text class='t' text-anchor='middle'>{spans}<title>{escape(label)}</title></text>")
    for index, series in enumerate(plot.series):
        parts.append(f"<g class='s bars s{index % NUM_COLOURS}'>")
        for number_of_bar, (value, y) in enumerate(zip(series.xs, series.ys, strict=True)):
            if not math.isfinite(y):
                continue
            label = value if isinstance(value, str) else tick_label(value)
            left = LEFT + labels.index(label) * room + room * (1 - BAR_SHARE) / 2 + index * bar
            top, bottom = sorted((up.place(y), up.place(0.0)))
            parts.append(
                f"<rect class='b' x='{left:.1f}' y='{top:.1f}' width='{max(bar - 1, 1):.1f}' "
                f"height='{max(bottom - top, 0.5):.1f}'><title>{_title(plot, series.name, label, y)}</title></rect>"
            )
            if series.lows:
                low, high = series.lows[number_of_bar], series.highs[number_of_bar]
                parts.append(_error_bar(left + bar / 2, up.place(low), up.place(high)))
        parts.append("</g>")
    for mark in plot.marks:
        if mark.axis == "y":
            y = up.place(mark.at)
            parts.append(f"<line class='m' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
            parts.append(
                f"<text class='ml' x='{WIDTH - RIGHT}' y='{y - 4:.1f}' text-anchor='end'>{escape(mark.label)}</text>"
            )
    return "\n".join(parts)


def _points(plot: Plot, series: Series) -> list[Point]:
    """The points of a series to draw: at most MAX_POINTS, including the extremes of those that are left out."""
    xs = [float(x) for x in series.xs]
    if plot.kind == "cdf":
        samples = sorted(x for x in xs if math.isfinite(x))
        last = len(samples) - 1
        ranks = {round(step * last / (MAX_POINTS - 1)) for step in range(MAX_POINTS)} if samples else set()
        return [(samples[rank], (rank + 1) / len(samples)) for rank in sorted(ranks)]
    points = list(zip(xs, map(float, series.ys), strict=True))
    if plot.kind == "points" or len(points) <= MAX_POINTS:
        return points
    kept: list[Point] = []
    size = 2 * len(points) // MAX_POINTS + 1
    for first in range(0, len(points), size):
        part = points[first : first + size]
        known = [point for point in part if math.isfinite(point[1])]
        if known:
            ends = min(known, key=lambda point: point[1]), max(known, key=lambda point: point[1])
            kept += sorted(set(ends))
        else:
            kept.append(part[0])  # a gap
    return kept


def _path(curve: Sequence[Point], across: Axis, up: Axis, plot: Plot) -> str:
    steps: list[str] = []
    previous: Point | None = None
    for x, y in curve:
        if not (math.isfinite(x) and math.isfinite(y)) or (plot.log_x and x <= 0):
            previous = None
            continue
        px, py = across.place(x), up.place(y)
        if previous is None:
            start = f"{px:.1f} {up.place(0.0):.1f}V{py:.1f}" if plot.kind == "cdf" else f"{px:.1f} {py:.1f}"
            steps.append(f"M{start}")
        elif plot.kind in ("step", "cdf"):
            steps.append(f"H{px:.1f}V{py:.1f}")
        else:
            steps.append(f"L{px:.1f} {py:.1f}")
        previous = (px, py)
    return "".join(steps)


def _error_bars(series: Series, across: Axis, up: Axis) -> Iterator[str]:
    for x, low, high in zip(series.xs, series.lows, series.highs, strict=False):
        if not isinstance(x, str) and math.isfinite(low) and math.isfinite(high):
            yield _error_bar(across.place(x), up.place(low), up.place(high))


def _error_bar(x: float, low: float, high: float) -> str:
    return (
        f"<path class='e' d='M{x:.1f} {low:.1f}V{high:.1f}M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6'/>"
        if math.isfinite(low) and math.isfinite(high)
        else ""
    )


def _frame(plot: Plot, up: Axis) -> str:
    """Grid, y ticks and labels of both axes."""
    parts = []
    for tick in up.ticks():
        y = up.place(tick)
        parts.append(f"<line class='g' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
        parts.append(f"<text class='t' x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{tick_label(tick)}</text>")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f"<text class='l' x='14' y='{middle}' text-anchor='middle' transform='rotate(-90 14 {middle})'>"
        f"{escape(plot.y_label)}</text>"
    )
    parts.append(
        f"<text class='l' x='{(LEFT + WIDTH - RIGHT) / 2}' y='{HEIGHT - 8}' text-anchor='middle'>"
        f"{escape(plot.x_label)}</text>"
    )
    return "\n".join(parts)


def _x_ticks(across: Axis) -> str:
    bottom = HEIGHT - BOTTOM
    return "\n".join(
        f"<line class='g' x1='{across.place(tick):.1f}' x2='{across.place(tick):.1f}' y1='{bottom}' y2='{bottom + 4}'/>"
        f"<text class='t' x='{across.place(tick):.1f}' y='{bottom + 16}' text-anchor='middle'>{tick_label(tick)}</text>"
        for tick in across.ticks()
    )


def _title(plot: Plot, name: str, x: str, y: float) -> str:
    who = f"{name}: " if name else ""
    return escape(f"{who}{plot.y_label} {number(y)} at {plot.x_label} {x}")
