"""Draws what `bench_kv_overlap.py` has measured: which layer is computed when, and when its pages are in place."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH, LEFT, RIGHT, TOP, ROW, BOTTOM = 860, 70, 150, 86, 18, 46
COMPUTE, TRANSFER, INK, LINE = "#4c78a8", "#f58518", "#222222", "#bbbbbb"
MIN_WIDTH = 2.0  # pixels, so that a short bar is seen at all


@dataclass(frozen=True, slots=True)
class Bar:
    """Times in ms since the request came."""

    layer: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Overlap:
    title: str
    computed: list[Bar]  # one a layer and chunk of the prompt
    sent: list[Bar]  # one a layer and slab: from computed to verified and in place
    first_token: float

    @property
    def end(self) -> float:
        return max(self.first_token, *(bar.end for bar in self.sent))

    @property
    def last_computed(self) -> float:
        return max(bar.end for bar in self.computed)


def draw(overlap: Overlap) -> str:
    num_layers = 1 + max(bar.layer for bar in overlap.computed)
    scale = (WIDTH - LEFT - RIGHT) / overlap.end
    floor = TOP + num_layers * ROW

    def x(at: float) -> float:
        return LEFT + at * scale

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{floor + BOTTOM}" '
        f'font-family="sans-serif" font-size="11" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{floor + BOTTOM}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{overlap.title}</text>',
        *_legend(LEFT, 36, COMPUTE, "the prefill worker computes, up to the layer's keys and values"),
        *_legend(LEFT + 370, 36, TRANSFER, "its pages are on their way to the decode worker"),
    ]
    for ms in _ticks(overlap.end):
        parts.append(f'<line x1="{x(ms):.1f}" y1="{TOP}" x2="{x(ms):.1f}" y2="{floor}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{x(ms):.1f}" y="{floor + 16}" text-anchor="middle">{ms:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{floor + 34}" text-anchor="middle">ms since the request came</text>')
    for layer in range(num_layers):
        y = TOP + layer * ROW
        parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">layer {layer}</text>')
        late = max(bar.end - bar.begin for bar in overlap.sent if bar.layer == layer)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y + 13}">in place after {late:.2f} ms</text>')
    for bars, colour, dy, height in ((overlap.computed, COMPUTE, 2, 7), (overlap.sent, TRANSFER, 9, 7)):
        for bar in bars:
            width = max(MIN_WIDTH, (bar.end - bar.begin) * scale)
            y = TOP + bar.layer * ROW + dy
            parts.append(
                f'<rect x="{x(bar.begin):.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>'
            )
    in_place = max(bar.end for bar in overlap.sent)
    note = f"all pages in place {in_place - overlap.last_computed:.2f} ms after the last layer was computed"
    for at, text, y in ((in_place, note, 62), (overlap.first_token, "first token", 78)):
        place = f'x1="{x(at):.1f}" y1="{y + 3}" x2="{x(at):.1f}" y2="{floor}"'
        parts.append(f'<line {place} stroke="{LINE}" stroke-dasharray="3 2"/>')
        parts.append(f'<text x="{x(at):.1f}" y="{y}" text-anchor="end">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _legend(x: int, y: int, colour: str, text: str) -> list[str]:
    return [
        f'<rect x="{x}" y="{y - 8}" width="14" height="8" fill="{colour}"/>',
        f'<text x="{x + 20}" y="{y}">{text}</text>',
    ]


def _ticks(end: float) -> list[float]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if end / step <= 12)
    return [float(step * n) for n in range(int(end / step) + 1)]
