"""`slipstream sim` as people call it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.cli import main


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written_loses_no_report(tmp_path: Path, option: str) -> None:
    words = ["sim", "--workload", "chat", "-n", "3", "-s", "1:1", "-p", "slo", "-q", option, str(tmp_path)]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (1, True)
    assert "Simulation of chat" in result.output
    assert f"{tmp_path}: Is a directory" in result.output


def test_a_planner_that_cannot_be_had_is_named_with_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "sim.yaml"
    file.write_text("workload: chat\nplanner: {enabled: true, class_name: nowhere.Planner}\n")
    result = CliRunner().invoke(main, ["sim", str(file)])
    assert result.exit_code == 2
    assert f"{file}: planner.class_name: cannot import nowhere" in result.output
