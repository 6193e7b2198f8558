"""Which metrics and labels a PromQL expression names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SELECTOR = re.compile(rf"({NAME})\s*(?:\{{([^}}]*)\}})?")
MATCHER = re.compile(rf"({NAME})\s*(?:=~|!~|!=|=)")
RANGE = re.compile(r"\[[^\]]*\]")
KEYWORDS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "offset"})
KEYWORDS |= {"bool", "inf", "nan"}
OF_SCRAPES = frozenset({"job", "instance"})  # labels that Prometheus adds
OTHERS_METRICS: Mapping[str, Set[str]] = {
    "up": frozenset(),
    "DCGM_FI_DEV_GPU_UTIL": frozenset({"UUID", "gpu"}),
    "DCGM_FI_DEV_FB_USED": frozenset({"UUID", "gpu"}),
}


@dataclass(frozen=True, slots=True)
class Selected:
    metric: str
    labels: frozenset[str]


def selectors(expression: str) -> Iterator[Selected]:
    """The metrics with the labels that their matchers name. Names before a parenthesis are functions."""
    plain = GROUPING.sub(" ", RANGE.sub("", TEXT.sub('""', expression)))
    for found in SELECTOR.finditer(plain):
        name, matchers = found[1], found[2] or ""
        before = plain[found.start() - 1] if found.start() else " "
        if name.lower() in KEYWORDS or before.isdigit() or before in "$." or before == '"':
            continue
        if not plain[found.end() :].lstrip().startswith("("):
            yield Selected(name, frozenset(MATCHER.findall(matchers)))


def grouped_labels(expression: str) -> frozenset[str]:
    lists = [found[2] for found in GROUPING.finditer(TEXT.sub('""', expression))]
    return frozenset(label.strip() for one in lists for label in one.split(",") if label.strip())


def faults(expression: str, labels_of: Mapping[str, Set[str]]) -> list[str]:
    """What the expression names that is not there. `labels_of` has the labels of each sample's name."""
    known = {**OTHERS_METRICS, **labels_of}
    found, there = [], set(OF_SCRAPES)
    for one in selectors(expression):
        if one.metric not in known:
            found.append(f"no metric {one.metric}")
            continue
        there |= known[one.metric]
        found += [f"{one.metric} has no label {label}" for label in one.labels - known[one.metric] - OF_SCRAPES]
    made = set(re.findall(r'label_(?:replace|join)\([^"]*"(\w+)"', expression))
    return found + [f"no metric here has the label {label}" for label in grouped_labels(expression) - there - made]
