"""A table for people: aligned columns at the terminal, the same values as JSON and HTML."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Cell = str | int | float | None
GAP = "  "
MIN_TEXT_WIDTH = 12  # a column of text is not made narrower than this


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` have a cell for each of `columns`: text, a number, or None, which is shown as a dash. Numbers are aligned
    to the right and have four significant digits; JSON has them in full. `note` is shown below the table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: {len(row)} cells for {len(self.columns)} columns: {row!r}")

    def text(self, width: int | None = None) -> str:
        """The table as text for a terminal of `width` columns (None: unlimited). If that is too narrow, cells are
        wrapped; if that is not enough, the table continues below, with its first column repeated."""
        lines = [self.title] if self.title else []
        for block in self._blocks(width):
            lines += [*block, ""]
        if self.note:
            lines[-1:] = [*textwrap.wrap(self.note, max(width or 100, 20)), ""]
        return "\n".join(line.rstrip() for line in lines[:-1]) + "\n"

    def json(self) -> dict[str, Any]:
        rows = [[plain(cell) for cell in row] for row in self.rows]
        content = {"kind": "table", "title": self.title, "columns": list(self.columns), "rows": rows}
        return content | ({"note": self.note} if self.note else {})

    def html(self) -> str:
        numeric = self._numeric()
        head = "".join(_html_cell("th", name, n) for name, n in zip(self.columns, numeric, strict=True))
        body = "\n".join(
            "<tr>" + "".join(_html_cell("td", shown(c), n) for c, n in zip(row, numeric, strict=True)) + "</tr>"
            for row in self.rows
        )
        note = f"<p class='note'>{escape(self.note)}</p>" if self.note else ""
        return (
            f"<section><h2>{escape(self.title)}</h2><div class='wide'><table><thead><tr>{head}</tr></thead>\n"
            f"<tbody>{body}</tbody></table></div>{note}</section>"
        )

    def _numeric(self) -> list[bool]:
        """Which columns are aligned to the right: those that contain a number and no text."""
        columns: list[list[Cell]] = [[row[index] for row in self.rows] for index in range(len(self.columns))]
        return [
            any(not isinstance(cell, str | None) for cell in column)
            and not any(isinstance(cell, str) and cell for cell in column)
            for column in columns
        ]

    def _blocks(self, width: int | None) -> list[list[str]]:
        numeric = self._numeric()
        cells = [[shown(cell) for cell in row] for row in self.rows]
        widths = [
            max([display_width(name), *(display_width(row[index]) for row in cells)])
            for index, name in enumerate(self.columns)
        ]
        if width is not None:
            _narrow(widths, numeric, width)
        groups = _column_groups(widths, width)
        return [self._block(group, widths, numeric, cells) for group in groups]

    def _block(self, group: list[int], widths: list[int], numeric: list[bool], cells: list[list[str]]) -> list[str]:
        def lines_of(row: Sequence[str]) -> list[str]:
            parts = [wrapped(row[index], widths[index]) for index in group]
            height = max((len(part) for part in parts), default=1)
            columns = [
                [aligned(text, widths[index], numeric[index]) for text in [*part, *[""] * (height - len(part))]]
                for index, part in zip(group, parts, strict=True)
            ]
            return [GAP.join(line) for line in zip(*columns, strict=True)]

        rule = GAP.join("─" * widths[index] for index in group)
        return [*lines_of(self.columns), rule, *(line for row in cells for line in lines_of(row))]


def shown(cell: Cell) -> str:
    """A cell as people read it."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return number(cell)


def number(value: float) -> str:
    """Four significant digits, thousands apart: 12,345 and 123.4 and 0.01234."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value == 0:
        return "0"
    digits = math.floor(math.log10(abs(value)))
    if digits < -4 or digits > 14:
        return f"{value:.3e}"
    return f"{value:,.{max(3 - digits, 0)}f}"


def plain(cell: Cell) -> Cell:
    """The cell as JSON allows it: no infinities, no NaN."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell


def display_width(text: str) -> int:
    """The number of terminal columns of a text: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def aligned(text: str, width: int, right: bool) -> str:
    space = " " * max(width - display_width(text), 0)
    return space + text if right else text + space


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 1)) or [""] if display_width(text) > width else [text]


def _narrow(widths: list[int], numeric: list[bool], width: int) -> None:
    """Narrows the widest columns of text, in place, until the table fits."""
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        text = [index for index, is_number in enumerate(numeric) if not is_number and widths[index] > MIN_TEXT_WIDTH]
        if not text:
            return
        widths[max(text, key=lambda index: widths[index])] -= 1


def _column_groups(widths: list[int], width: int | None) -> list[list[int]]:
    """Groups of columns that fit side by side; every group begins with the first column."""
    groups = [[0]] if widths else []
    used = widths[0] if widths else 0
    for index in range(1, len(widths)):
        needed = len(GAP) + widths[index]
        if width is not None and used + needed > width and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0]
        groups[-1].append(index)
        used += needed
    return groups


def _html_cell(tag: str, text: str, is_number: bool) -> str:
    return f"<{tag}{' class=n' if is_number else ''}>{escape(text)}</{tag}>"
