"""`slipstream fetch`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.commands.fetch_command import fetch_command
from slipstream.cluster.sizing.serve_target import DEMO_MODEL
from tests.support.router.hub_server import HubRepository, files_of, hub


def test_models_are_there_before_they_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repository = HubRepository()
    commit = repository.commit(files_of(DEMO_MODEL))
    config = tmp_path / "my.yaml"
    config.write_text("model: {path: 'hf://org/demo', name: chat}\n")
    directory = tmp_path / "cache" / "slipstream" / "models" / "hf--org--demo" / commit
    with hub({"org/demo": repository}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        result = CliRunner().invoke(fetch_command, ["hf://org/demo"])
        assert result.exit_code == 0, result.output
        assert f"hf://org/demo: {directory}" in result.output
        before = server.num_bytes["model.safetensors"]
        result = CliRunner().invoke(fetch_command, [str(config), "hf://org/none"])
        assert result.exit_code == 2
        assert f"{config}: chat: {directory}" in result.output
        assert "slipstream: hf://org/none: there is no such model" in result.output
        assert server.num_bytes["model.safetensors"] == before
