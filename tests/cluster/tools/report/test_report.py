"""Tables, plots and reports say the same thing at the terminal, as JSON and as HTML."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pytest

from slipstream.cluster.tools.report.axis import Axis, linear_ticks, log_ticks, tick_label
from slipstream.cluster.tools.report.plot import Mark, Plot, PlotKind, Series
from slipstream.cluster.tools.report.report import Report
from slipstream.cluster.tools.report.table import Table, display_width, number

TABLE = Table(
    "Latency",
    ("metric", "avg", "max", "why"),
    [("ttft (ms)", 12.3456, 123456.0, "long " * 12), ("日本", None, math.inf, "")],
    note="a note",
)


class Page(HTMLParser):
    """Whether every element that is opened is closed, and what text there is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "path", "line", "rect", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(report: Report) -> Page:
    page = Page()
    page.feed(report.html())
    page.close()
    assert page.open == []
    return page


def test_columns_line_up_and_numbers_stand_to_the_right() -> None:
    lines = TABLE.text().splitlines()
    assert lines[0] == "Latency"
    header, rule, first, second = lines[1:5]
    end_of_avg = header.index("avg") + len("avg")
    assert first[:end_of_avg].endswith("12.35")
    assert second[: end_of_avg - 2].endswith("-")  # two wide characters take four columns
    assert display_width(second.split("-")[0]) == end_of_avg - 1
    assert "123,456" in first
    assert "inf" in second
    assert set(rule) == {"─", " "}
    assert lines[-1] == "a note"


@pytest.mark.parametrize("width", [30, 40, 60])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(width: int) -> None:
    table = Table("wide", ("name", *(f"column{n}" for n in range(9))), [("a b c " * 9, *range(9))] * 2)
    text = table.text(width)
    assert max(map(display_width, text.splitlines())) <= width
    assert all(f"column{n}" in text for n in range(9))
    assert len(re.findall(r"\bb\b", text)) % 18 == 0  # all words, in each block of columns


def test_a_row_of_another_length_is_an_error_that_names_the_table() -> None:
    with pytest.raises(ValueError, match="table 'x': 1 cells for 2 columns"):
        Table("x", ("a", "b"), [("only",)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.3456, "12.35"),
        (1234567.8, "1,234,568"),
        (0.012345, "0.01235"),
        (1e-7, "1.000e-07"),
        (-5.5, "-5.500"),
    ],
)
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_json_has_values_in_full_and_no_infinities() -> None:
    content = json.loads(json.dumps(Report("r", "s", [TABLE]).json(), allow_nan=False))
    assert content["parts"][0]["rows"][0][1] == 12.3456
    assert content["parts"][0]["rows"][1] == ["日本", None, None, ""]


@pytest.mark.parametrize("kind", ["line", "step", "bar", "cdf", "points"])
def test_every_kind_of_plot_draws_each_series_with_its_name_and_values(kind: PlotKind) -> None:
    ys: list[float] = [] if kind == "cdf" else [1.0, math.nan, 3.0]
    plot = Plot("p", "x (s)", "y", [Series("one", [1.0, 2.0, 4.0], ys), Series("<two>", [3.0], ys[:1])], kind)
    words = "".join(page_of(Report("r", "", [plot])).words)
    assert "<two>" in words
    assert "at x (s) 4" in words
    json.dumps(plot.json(), allow_nan=False)


@pytest.mark.parametrize("kind", ["line", "step", "bar", "cdf", "points"])
@pytest.mark.parametrize("xs", [[], [0.0], [5.0, 5.0], [math.nan], [-1.0, 1e12]])
@pytest.mark.parametrize("log_x", [False, True])
def test_no_values_at_all_and_equal_values_are_drawn_too(kind: PlotKind, xs: list[float], log_x: bool) -> None:
    finite = [x for x in xs if math.isfinite(x)] if kind == "bar" else xs
    series = Series("s", finite, () if kind == "cdf" else [0.0] * len(finite))
    html = Report("r", "", [Plot("p", "x", "y", [series], kind, log_x=log_x)]).html()
    assert "nan" not in html.split("<svg")[1]


def test_a_mark_and_error_bars_widen_the_axis_to_show_them() -> None:
    plot = Plot("p", "x", "y", [Series("s", [1.0, 2.0], [1.0, 2.0], [0.5, 1.0], [9.0, 3.0])], marks=[Mark(20.0, "SLO")])
    html = Report("r", "", [plot]).html()
    places = [float(y) for y in re.findall(r"class='m'.*? y1='([\d.]+)'", html)]
    assert places
    assert all(0 <= y <= 320 for y in places)
    assert html.count("class='e'") == 2


def test_long_lines_are_thinned_but_keep_their_extremes() -> None:
    ys = [1.0] * 100_000
    ys[77_777] = 50.0
    html = Report("r", "", [Plot("p", "x", "y", [Series("s", list(range(100_000)), ys)])]).html()
    assert len(html) < 60_000
    assert Axis.over(ys, 272, 12, from_zero=True).place(50.0) == 12.0
    path = re.search(r"<path d='([^']+)'", html)
    assert path is not None
    assert " 12.0" in path[1]


def test_the_page_needs_nothing_from_elsewhere_and_escapes_what_it_is_given() -> None:
    html = Report("<script>alert(1)</script>", "a & b\n\n<i>", [Table("<b>", ("<c>",), [("<d>",)])]).html()
    assert "<script" not in html
    assert "http" not in html
    assert "prefers-color-scheme: dark" in html
    assert html.count("class='summary'") == 2


def test_ticks_are_round_and_within_the_axis() -> None:
    assert linear_ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert [round(tick, 3) for tick in log_ticks(1, 100)] == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(1, 1e6) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    assert [tick_label(value) for value in (0.05, 1500, 2e7, 0)] == ["0.05", "1.5k", "20M", "0"]


def test_series_that_cannot_be_drawn_are_refused_with_their_name() -> None:
    with pytest.raises(ValueError, match="series 's': 1 xs and 2 ys"):
        Plot("p", "x", "y", [Series("s", [1.0], [1.0, 2.0])])
    with pytest.raises(ValueError, match="only bars have words"):
        Plot("p", "x", "y", [Series("s", ["a"], [1.0])])
    with pytest.raises(ValueError, match="a low and a high"):
        Plot("p", "x", "y", [Series("s", [1.0], [1.0], [0.0])])
