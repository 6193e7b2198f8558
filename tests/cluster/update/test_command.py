"""The commands where no cluster, or no sense, is there."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from slipstream.cluster.cli import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return lambda *words: CliRunner().invoke(main, words)


@pytest.mark.parametrize("share", ["v1", "v1=", "=50", "v1=much"])
def test_a_share_is_a_version_and_a_number(run, share):
    result = run("split", "v2=50", share)
    assert result.exit_code == 2
    assert f"expected VERSION=SHARE, got '{share}'" in result.output


@pytest.mark.parametrize("words", [("update", "c.yaml"), ("update",), ("split", "v1=1"), ("rollback",)])
def test_without_a_cluster_every_command_says_so(run, words):
    result = run(*words)
    assert result.exit_code == 1
    assert "no cluster runs here" in result.output
