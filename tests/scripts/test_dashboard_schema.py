"""The dashboards against Grafana's own types: a field that they do not know is lost on the way through them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.monitoring.dashboards import DASHBOARDS
from scripts.monitoring.panels import Dashboard

grafana = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="the extra dev has Grafana's types")


def through_grafanas_types(dashboard: dict[str, Any]) -> Any:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    return json.loads(json.dumps(grafana.Dashboard.from_json(dashboard), cls=JSONEncoder))


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """What of ours is missing in theirs, or another value. Theirs may have more: defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from differences(value, theirs.get(key, "missing"), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif ours != theirs:
        yield f"{path}: {ours!r} is {theirs!r}"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.name)
def test_grafanas_types_know_every_field_of_a_dashboard(dashboard: Dashboard) -> None:
    shown = dashboard.as_json()
    assert list(differences(shown, through_grafanas_types(shown))) == []


@pytest.mark.parametrize("place", ["panel", "target", "defaults"])
def test_a_misspelt_field_is_found(place: str) -> None:
    shown = json.loads(json.dumps(DASHBOARDS[0].as_json()))
    panel = shown["panels"][3]
    {"panel": panel, "target": panel["targets"][0], "defaults": panel["fieldConfig"]["defaults"]}[place]["tittle"] = 1
    assert [one.rsplit(".", 1)[1] for one in differences(shown, through_grafanas_types(shown))] == [
        "tittle: 1 is 'missing'"
    ]


def test_units_are_those_that_grafana_knows() -> None:
    from grafana_foundation_sdk.models import units

    known = {value for value in vars(units).values() if isinstance(value, str)}
    assert {panel.unit for dashboard in DASHBOARDS for panel in dashboard.panels} <= known
