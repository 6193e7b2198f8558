"""`slipstream sim` as people call it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.cli import main


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written_loses_no_report(tmp_path: Path, option: str) -> None:
    words = ["sim", "--workload", "chat", "-n", "3", "-s", "1:1", "-p", "slo", "-q", option, str(tmp_path)]
    told = CliRunner().invoke(main, words)
    assert (told.exit_code, isinstance(told.exception, SystemExit)) == (1, True)
    assert "Simulation of chat" in told.output
    assert f"{tmp_path}: Is a directory" in told.output
