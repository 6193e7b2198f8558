"""Panels of Grafana's dashboards, as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, COLUMNS = 8, 8, 3


@dataclass(frozen=True, slots=True)
class Query:
    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`red_above` is the threshold from which values are red; `is_stat`: a number instead of curves."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    about: str = ""
    red_above: float | None = None
    is_stat: bool = False

    def as_json(self, number: int) -> dict[str, Any]:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if self.red_above is not None:
            steps.append({"color": "red", "value": self.red_above})
        custom = {} if self.is_stat else {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
        return {
            "id": number + 1,
            "type": "stat" if self.is_stat else "timeseries",
            "title": self.title,
            "description": self.about,
            "datasource": DATASOURCE,
            "gridPos": {
                "x": number % COLUMNS * WIDTH,
                "y": number // COLUMNS * HEIGHT,
                "w": WIDTH,
                "h": HEIGHT,
            },
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "min": 0,
                    "thresholds": {"mode": "absolute", "steps": steps},
                    "custom": custom,
                },
                "overrides": [],
            },
            "options": {} if self.is_stat else {"legend": {"displayMode": "list", "placement": "bottom"}},
            "targets": [
                {
                    "refId": chr(ord("A") + at),
                    "datasource": DATASOURCE,
                    "expr": query.expression,
                    "legendFormat": query.legend,
                }
                for at, query in enumerate(self.queries)
            ],
        }


def panel(title: str, unit: str, *queries: tuple[str, str], red_above: float | None = None, about: str = "") -> Panel:
    return Panel(title, unit, tuple(Query(*query) for query in queries), about, red_above)


def stat(title: str, unit: str, expression: str, red_above: float | None = None) -> Panel:
    return Panel(title, unit, (Query(expression),), red_above=red_above, is_stat=True)


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice from the values of a label, of several or all of them."""

    name: str
    metric: str
    label: str

    @property
    def query(self) -> str:
        return f"label_values({self.metric}, {self.label})"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "label": self.name.capitalize(),
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": self.query, "refId": "variable"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    title: str
    variables: tuple[Variable, ...]
    panels: Sequence[Panel]

    def as_json(self) -> dict[str, Any]:
        datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
        links = {"title": "Slipstream", "type": "dashboards", "tags": ["slipstream"], "asDropdown": True}
        return {
            "uid": f"slipstream-{self.name}",
            "title": f"Slipstream: {self.title}",
            "tags": ["slipstream"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [{**links, "includeVars": True, "keepTime": True}],
            "templating": {"list": [datasource, *(one.as_json() for one in self.variables)]},
            "panels": [one.as_json(number) for number, one in enumerate(self.panels)],
        }
