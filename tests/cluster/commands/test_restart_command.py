"""What `slipstream restart` refuses; `tests/e2e/test_resizing` restarts a cluster with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream import __version__
from slipstream.cluster.commands.restart_command import DriverEnvironment, _chosen
from slipstream.cluster.processes import process_tree
from slipstream.cluster.sizing.serve_target import DEMO_MODEL
from slipstream.cluster.state import host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.terminal.command_error import CommandError

HERE = DriverEnvironment((sys.executable,), os.getcwd(), dict(os.environ))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    """A cluster that serves, whose guardian and driver are this process."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    host_folders.run_folder().mkdir()
    started = process_tree.start_time(os.getpid()) or 0.0
    ours = {"driver": os.getpid(), "driver_started": started}
    return ClusterState("one", os.getpid(), started, "/c.yaml", "m", "ready", "http://h:1", **ours)


def announce(state: ClusterState) -> None:
    state_file.write(host_folders.run_folder() / f"{state.name}.json", state)


def test_a_cluster_that_serves_can_be_restarted(state: ClusterState) -> None:
    announce(state)
    assert _chosen(None) == _chosen("one") == state


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"phase": "starting"}, "one is starting; nothing was done"),
        ({"driver": 1, "driver_started": 0.5}, "one is starting again; nothing was done"),
        ({"update": "canary", "update_phase": "canary"}, r"one is being updated \(canary\), which a restart would cut"),
    ],
)
def test_what_does_not_serve_or_is_being_updated_is_left_alone(
    state: ClusterState, changes: dict[str, object], reason: str
) -> None:
    announce(replace(state, **changes))  # type: ignore[arg-type]
    with pytest.raises(CommandError, match=reason):
        _chosen(None)
    with pytest.raises(CommandError, match="no cluster named two runs here"):
        _chosen("two")


def test_the_next_drivers_version_is_asked_of_its_own_interpreter() -> None:
    assert HERE.version() == __version__


def test_a_package_in_the_drivers_folder_is_not_taken_for_the_next_version(state: ClusterState, tmp_path: Path) -> None:
    """The driver does not look there for modules, and neither does the question."""
    (tmp_path / "slipstream").mkdir(exist_ok=True)
    (tmp_path / "slipstream" / "__init__.py").write_text('__version__ = "other"\n')
    command = [sys.executable, "-P", "-m", "code"]  # waits for input
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as driver:
        assert driver.stdout is not None
        driver.stdout.read(1)  # its prompt: before, the kernel may not know its command line yet
        environment = DriverEnvironment.of(replace(state, driver=driver.pid))
        assert driver.stdin is not None
        driver.stdin.close()
    assert environment.python == (sys.executable, "-P")
    assert environment.version() == __version__


def test_a_configuration_that_the_next_version_refuses_is_named_before_anything_ends(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: {path: nowhere}\nnew_key: 1\n")
    with pytest.raises(CommandError, match=r"the next driver would not start: .*c\.yaml.*; nothing was done"):
        HERE.check(str(path))


def test_what_the_running_cluster_takes_of_the_machine_is_not_held_against_its_configuration(tmp_path: Path) -> None:
    """It may run under another name than that of the file (`slipstream serve --name`)."""
    path = tmp_path / "c.yaml"
    with socket.create_server(("127.0.0.1", 0)) as router:
        port = router.getsockname()[1]
        path.write_text(f"model: {{path: {DEMO_MODEL}}}\nrouter: {{http: {{port: {port}}}}}\n")
        HERE.check(str(path))


def test_an_environment_that_cannot_start_is_named_before_anything_ends(tmp_path: Path) -> None:
    gone = replace(HERE, python=(str(tmp_path / "python"),))
    with pytest.raises(CommandError, match=r"the next driver would not start: .*tmp.*python.*nothing was done"):
        gone.version()
    with pytest.raises(CommandError, match=r"would not start: .*nonsense"):
        replace(HERE, variables={"PYTHONPATH": str(tmp_path)})._run("-c", "raise SystemExit('nonsense')")
