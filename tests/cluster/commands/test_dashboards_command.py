"""The files for Prometheus and Grafana that the command writes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from slipstream.cluster.commands.dashboards_command import dashboards_command

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def run(*words: str) -> Result:
    return CliRunner().invoke(dashboards_command, words)


def runbooks(folder: Path) -> list[str]:
    groups = yaml.safe_load((folder / "prometheus" / "rules.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule]


def test_all_files_are_written_as_they_are(tmp_path: Path) -> None:
    result = run(str(tmp_path / "new"))
    assert result.exit_code == 0, result.output
    written = {path.relative_to(tmp_path / "new") for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert {Path("grafana/overview.json"), Path("prometheus/rules.yaml")} <= written
    assert result.output == f"{len(written)} files in {tmp_path / 'new'}\n"
    for path in written:
        assert (tmp_path / "new" / path).read_bytes() == (CONFIGS / path).read_bytes()


def test_runbooks_lead_to_the_documentation_that_is_named(tmp_path: Path) -> None:
    assert run(str(tmp_path), "--docs", "https://docs.example.org/serving/").exit_code == 0
    links = runbooks(tmp_path)
    assert links
    assert all(link.startswith("https://docs.example.org/serving/how-to/monitoring/#slipstream") for link in links)


def test_what_was_edited_is_replaced_only_on_demand(tmp_path: Path) -> None:
    run(str(tmp_path))
    edited = tmp_path / "prometheus" / "prometheus.yaml"
    edited.write_text("mine", encoding="utf-8")
    (tmp_path / "grafana" / "model.json").unlink()
    refused = run(str(tmp_path))
    assert refused.exit_code == 1
    assert f"{edited} is there and differs; --force replaces what differs" in refused.output
    assert not (tmp_path / "grafana" / "model.json").exists()
    assert run(str(tmp_path), "--force").exit_code == 0
    assert edited.read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize("address", ["docs.example.org", "ftp://docs", "https://"])
def test_an_address_of_no_page_is_refused(tmp_path: Path, address: str) -> None:
    result = run(str(tmp_path / "none"), "--docs", address)
    assert result.exit_code == 2
    assert repr(address) in result.output
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's prometheus) is not on PATH")
def test_promtool_accepts_what_is_written(tmp_path: Path) -> None:
    run(str(tmp_path), "--docs", "https://docs.example.org")
    for what, file in (("rules", "rules.yaml"), ("config", "prometheus.yaml")):
        command = ["promtool", "check", what, *(["--syntax-only"] if what == "config" else []), file]
        folder = tmp_path / "prometheus"
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
