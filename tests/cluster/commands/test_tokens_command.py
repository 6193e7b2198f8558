"""`slipstream tokens show`; `tests/cluster/admin_api/test_admin_api` edits files of tokens with the other commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.commands.tokens_command import tokens_command
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterState


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    """A cluster whose guardian is this process."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    host_folders.run_folder().mkdir()
    started = process_tree.start_time(os.getpid()) or 0.0
    return ClusterState("one", os.getpid(), started, "/c.yaml", "m", "ready", operator_token="secret")


def announce(state: ClusterState) -> None:
    state_file.write(host_folders.run_folder() / f"{state.name}.json", state)


def test_the_token_of_the_cluster_is_printed_and_nothing_else(state: ClusterState) -> None:
    state.operator_url = "http://127.0.0.1:8100"
    announce(state)
    for arguments in (["show"], ["show", "one"], ["show", "--name", "one"]):
        assert CliRunner().invoke(tokens_command, arguments).stdout == "secret\n"


def test_a_cluster_without_an_admin_api_has_no_token_to_show(state: ClusterState) -> None:
    announce(state)
    shown = CliRunner().invoke(tokens_command, ["show"])
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "one serves no admin API (admin_api.port is null in /c.yaml)" in shown.stderr


def test_without_a_cluster_the_message_says_where_to_ask(state: ClusterState) -> None:
    shown = CliRunner().invoke(tokens_command, ["show"])
    assert shown.exit_code == 1
    assert "no cluster runs here; for one elsewhere give this command on its host" in shown.stderr
