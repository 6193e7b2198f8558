"""Writes configs/grafana/*.json. Raises ValueError where a panel names a metric or a label that is not there."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Set
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.monitoring.dashboards import DASHBOARDS  # noqa: E402
from scripts.monitoring.expressions import faults  # noqa: E402
from scripts.monitoring.families import labels_by_sample  # noqa: E402
from scripts.monitoring.panels import Dashboard  # noqa: E402

FOLDER = ROOT / "configs" / "grafana"


def generated(labels_of: Mapping[str, Set[str]]) -> dict[str, str]:
    """The texts of the dashboards by file name."""
    return {f"{one.name}.json": text_of(one, labels_of) for one in DASHBOARDS}


def text_of(dashboard: Dashboard, labels_of: Mapping[str, Set[str]]) -> str:
    for panel in dashboard.panels:
        for query in panel.queries:
            found = faults(query.expression, labels_of)
            if found:
                raise ValueError(f"dashboard {dashboard.name}, panel {panel.title!r}: {'; '.join(found)}")
    for variable in dashboard.variables:
        if variable.label not in labels_of.get(variable.metric, ()):
            raise ValueError(f"dashboard {dashboard.name}: {variable.metric} has no label {variable.label}")
    return json.dumps(dashboard.as_json(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, text in generated(labels_by_sample()).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
