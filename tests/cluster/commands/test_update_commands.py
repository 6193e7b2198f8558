"""The commands where no cluster, or no sense, is there."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from slipstream.cluster.admin_api.client import cluster_choice as choice
from slipstream.cluster.cli import main
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.terminal.command_error import CommandError


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


@pytest.fixture
def two_clusters(run, monkeypatch):
    """Runs a command while clusters `one` and `two` run; what it would ask is in its output."""

    def ask(state, token, reason):
        raise CommandError(f"asks {state.name}")

    monkeypatch.setattr(choice, "LocalAdmin", ask)
    host_folders.run_folder().mkdir()
    for name in ("one", "two"):
        state = ClusterState(
            name, os.getpid(), process_tree.start_time(os.getpid()), "/c.yaml", "m", "ready", "http://h:1"
        )
        state_file.write(host_folders.run_folder() / f"{name}.json", state)
    return run


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("name: two\nmodel: {path: m}\n", (), "asks two"),
        ("name: two\n", ("--name", "one"), "asks one"),
        ("name: three\n", (), "say which one with --name: one, two"),
        ("model: {path: m}\n", (), "say which one with --name: one, two"),
        ("name: 2\n", (), "say which one with --name: one, two"),
        ("name: [\n", (), "say which one with --name: one, two"),
        (None, (), "say which one with --name: one, two"),
    ],
)
def test_of_several_clusters_the_file_s_name_says_which_is_updated(two_clusters, tmp_path, text, options, said):
    if text is not None:
        (tmp_path / "c.yaml").write_text(text)
    result = two_clusters("update", str(tmp_path / "c.yaml"), *options)
    assert result.exit_code == 1
    assert said in result.output


def test_a_single_cluster_is_updated_whatever_the_file_s_name(two_clusters, tmp_path):
    """`slipstream serve --name` overrides the name in the file, also in later ones."""
    (host_folders.run_folder() / "one.json").unlink()
    (tmp_path / "c.yaml").write_text("name: one\n")
    assert "asks two" in two_clusters("update", str(tmp_path / "c.yaml")).output
