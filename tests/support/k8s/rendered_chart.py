"""The chart, rendered by Helm's own code as `helm template` does, with a file of values and changes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "configs" / "helm" / "slipstream"
VALUES = ROOT / "configs" / "helm" / "values"
Manifest = dict[str, Any]


def values_of(name: str | None) -> dict[str, Any]:
    """Of an example; None: only the chart's own."""
    return {} if name is None else yaml.safe_load((VALUES / f"{name}.yaml").read_text())


def rendered(values: dict[str, Any]) -> list[Manifest]:
    """Raises HelmError if the values are not allowed."""
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed (pip install -e '.[charts]')")
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="demo", namespace="prod")
    texts = [text for name, text in sorted(files.items()) if not name.endswith("NOTES.txt")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def of_kind(documents: list[Manifest], kind: str) -> list[Manifest]:
    return [document for document in documents if document["kind"] == kind]


def served_config(documents: list[Manifest]) -> dict[str, Any]:
    """The configuration of Slipstream in the config map."""
    [config_map] = of_kind(documents, "ConfigMap")
    found: dict[str, Any] = yaml.safe_load(config_map["data"]["slipstream.yaml"])
    return found
