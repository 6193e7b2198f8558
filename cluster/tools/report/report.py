"""A report: the answer in a few sentences, then tables and plots, for the terminal, as JSON, and as one HTML page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from slipstream.cluster.tools.report.plot import Plot
from slipstream.cluster.tools.report.svg import draw
from slipstream.cluster.tools.report.table import Table

DEFAULT_WIDTH = 100  # of text if the terminal's width is not known

# Colours: Okabe and Ito's, which people with colour-blindness tell apart, lighter where the page is dark.
STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5c6675; --paper: #fff; --line: #dfe3e8; --head: #f4f6f8;
 --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #b8860b; --c5: #56b4e9; --c6: #7f3fbf; --c7: #666 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --dim: #9aa5b4; --paper: #14181e; --line: #2c333d;
 --head: #1c222a; --c0: #4fa8e0; --c1: #f28c4a; --c2: #3fc79a; --c3: #e3a0c6; --c4: #e0b84a; --c5: #8fd0f5;
 --c6: #b58be6; --c7: #aaa } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
 font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: 0 0 .5rem } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
.summary { font-size: 1.05rem } .note { color: var(--dim); font-size: .85rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { background: var(--head); font-weight: 600 } .n { text-align: right }
tbody tr:hover { background: var(--head) }
figure { margin: 0 } svg { width: 100%; height: auto; display: block; overflow: visible }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; color: var(--dim) }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em }
.g { stroke: var(--line) } .t, .l, .ml { fill: var(--dim); font-size: 11px } .l { font-size: 12px }
.m { stroke: var(--dim); stroke-dasharray: 5 4 }
.s { color: var(--c) } .s path { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round }
.s .e { stroke-width: 1.2 } .bars .e { stroke: var(--ink) } .s .b, .s .p { fill: currentColor }
.s .h { fill: transparent }
.s g:hover .h { fill: currentColor; fill-opacity: .3 } .s .b:hover { fill-opacity: .75 }
"""
COLOURS = "\n".join(
    f".s{index} {{ --c: var(--c{index}) }} .k{index} {{ background: var(--c{index}) }}" for index in range(8)
)


@dataclass(frozen=True, slots=True)
class Report:
    """`summary` is the answer in plain words; a blank line begins a new paragraph."""

    title: str
    summary: str
    parts: Sequence[Table | Plot]

    def text(self, width: int | None = None) -> str:
        """The report as text for a terminal of `width` columns, without plots."""
        paragraphs = [
            textwrap.fill(" ".join(paragraph.split()), max(width or DEFAULT_WIDTH, 20))
            for paragraph in self.summary.split("\n\n")
            if paragraph.strip()
        ]
        tables = [part.text(width).rstrip("\n") for part in self.parts if isinstance(part, Table)]
        return "\n\n".join([self.title, *paragraphs, *tables]) + "\n"

    def json(self) -> dict[str, Any]:
        """The report as plain values, ready for `json.dumps`."""
        return {"title": self.title, "summary": self.summary, "parts": [part.json() for part in self.parts]}

    def html(self) -> str:
        """One page that needs nothing else: no scripts, no fonts, no other files."""
        summary = "".join(
            f"<p class='summary'>{escape(paragraph)}</p>\n"
            for paragraph in self.summary.split("\n\n")
            if paragraph.strip()
        )
        parts = "\n".join(part.html() if isinstance(part, Table) else draw(part) for part in self.parts)
        return (
            "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
            f"<title>{escape(self.title)}</title>\n<style>{STYLE}{COLOURS}</style></head>\n"
            f"<body><h1>{escape(self.title)}</h1>\n{summary}{parts}\n</body></html>\n"
        )
