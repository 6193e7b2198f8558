"""What is generated from the metrics, and the rules for Prometheus."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from scripts.monitoring.dashboards import OVERVIEW
from scripts.monitoring.expressions import faults, grouped_labels, selectors
from scripts.monitoring.families import labels_by_sample
from scripts.monitoring.generate_dashboards import FOLDER, generated, text_of
from scripts.monitoring.metrics_reference import PAGE, page
from scripts.monitoring.panels import Dashboard, panel
from scripts.monitoring.scraped import Target, configuration
from slipstream.cluster.commands.dashboards_command import DOCS_PLACE

PROMETHEUS = FOLDER.parent / "prometheus"
RUNBOOKS = PAGE.parents[1] / "how-to" / "monitoring.md"


def test_ports_with_tls_are_scraped_by_https_and_keys_are_shown(tmp_path: Path) -> None:
    targets = {
        "slipstream-router": Target("https://router.example:8000", "secret"),
        "slipstream-driver": Target("http://127.0.0.1:8100"),
    }
    router, driver = configuration(targets, tmp_path)["scrape_configs"]
    assert (router["scheme"], router["static_configs"]) == ("https", [{"targets": ["router.example:8000"]}])
    assert Path(router["authorization"]["credentials_file"]).read_text() == "secret"
    assert (driver["scheme"], "authorization" in driver) == ("http", False)


def rules() -> list[dict[str, object]]:
    groups = yaml.safe_load((PROMETHEUS / "rules.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_page_of_metrics_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run scripts/monitoring/metrics_reference.py"


def test_the_dashboards_are_current() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert found == generated(labels_by_sample()), "run scripts/monitoring/generate_dashboards.py"


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum by (model_name) (slipstream:worker)", "no metric slipstream:worker"),
        ('slipstream:workers{rule="decode"}', "slipstream:workers has no label rule"),
        ("sum by (tenant) (slipstream:workers)", "no metric here has the label tenant"),
    ],
)
def test_a_panel_cannot_name_what_is_not_there(expression: str, fault: str) -> None:
    broken = Dashboard("broken", "broken", (), (panel("p", "short", (expression, "")),))
    with pytest.raises(ValueError, match=fault):
        text_of(broken, labels_by_sample())


def test_names_in_texts_ranges_and_functions_are_no_metrics() -> None:
    expression = 'sum by (le) (rate(a_bucket{x="b{c}"}[5m])) / on (y) group_left label_replace(d, "y", "$1", "z", "e")'
    assert [(one.metric, set(one.labels)) for one in selectors(expression)] == [("a_bucket", {"x"}), ("d", set())]
    assert grouped_labels(expression) == {"le", "y"}


def test_rules_name_metrics_and_labels_that_are_there() -> None:
    labels_of = labels_by_sample()
    recorded = {str(rule["record"]): frozenset({"model_name"}) for rule in rules() if "record" in rule}
    assert {str(rule["expr"]): faults(str(rule["expr"]), {**labels_of, **recorded}) for rule in rules()} == {
        str(rule["expr"]): [] for rule in rules()
    }


def test_each_alert_has_a_runbook() -> None:
    headings = {line.removeprefix("### ") for line in RUNBOOKS.read_text(encoding="utf-8").splitlines()}
    alerts = {str(rule["alert"]) for rule in rules() if "alert" in rule}
    assert alerts <= headings
    for rule in rules():
        if "alert" in rule:
            notes = rule["annotations"]
            assert isinstance(notes, dict)
            assert notes["runbook_url"] == f"{DOCS_PLACE}#{str(rule['alert']).lower()}"
            assert notes["summary"]
            assert notes["description"]


def test_each_alert_has_a_test_and_the_chart_has_the_same_rules() -> None:
    tests = (PROMETHEUS / "rules_test.yaml").read_text(encoding="utf-8")
    alerts = [str(rule["alert"]) for rule in rules() if "alert" in rule]
    assert [name for name in alerts if f'alertname="{name}"' not in tests and f"alertname: {name}" not in tests] == []
    chart = FOLDER.parent / "helm" / "slipstream" / "files" / "rules.yaml"
    assert chart.read_text(encoding="utf-8") == (PROMETHEUS / "rules.yaml").read_text(encoding="utf-8")


def test_the_sum_of_a_histogram_has_no_bounds() -> None:
    assert faults('x_sum{le="1"}', {"x_sum": frozenset({"model"})}) == ["x_sum has no label le"]
    labels_of = labels_by_sample()
    assert "le" in labels_of["vllm:time_to_first_token_seconds_bucket"]
    assert "le" not in labels_of["vllm:time_to_first_token_seconds_sum"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's prometheus) is not on PATH")
@pytest.mark.parametrize(
    "what", [("test", "rules", "rules_test.yaml"), ("check", "config", "--syntax-only", "prometheus.yaml")]
)
def test_promtool_accepts_the_rules_and_the_configuration(what: tuple[str, ...]) -> None:
    *words, name = what
    done = subprocess.run(["promtool", *words, str(PROMETHEUS / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_do_not_cover_each_other() -> None:
    places = [one["gridPos"] for one in OVERVIEW.as_json()["panels"]]
    assert len({(place["x"], place["y"]) for place in places}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert Path(FOLDER / "overview.json").exists()
