"""What a driver leaves for the next one of its guardian."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from slipstream.cluster.config.loading.overrides import Overrides
from slipstream.cluster.driver import driver_process
from slipstream.cluster.driver.driver import Driver
from slipstream.cluster.driver.driver_process import run_driver, state_before
from slipstream.cluster.driver.driver_task import DriverTask
from slipstream.cluster.processes.guardian_link import INTERRUPTED, DriverEnv, GuardianLink
from slipstream.cluster.repository.model_content import ModelContent
from slipstream.cluster.state import host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.terminal.console import Console
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.protocol.messages import Role
from tests.cluster.test_cli import LOCAL

NAMED = Overrides(name="mine")


@pytest.fixture
def guardians(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[bool, GuardianLink]]:
    """By whether there was a driver before: the guardian is the parent of this process, and the other ends of the links
    are not read."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    ours = []
    made = {}
    for is_again in (False, True):
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.append(link)
        made[is_again] = GuardianLink(DriverEnv(os.getppid(), theirs.detach(), None, is_again))
    yield made
    for guardian in made.values():
        guardian.close()
    for link in ours:
        link.close()


def task_of(guardian: GuardianLink, before: ClusterState | None, folder: Path) -> DriverTask:
    return DriverTask(guardian, NAMED.load(LOCAL), LOCAL, NAMED, before, folder / "mine.json", timings=False)


@pytest.mark.parametrize("code", [0, 1, INTERRUPTED])
@pytest.mark.parametrize("has_guardian", [False, True])
def test_the_state_is_left_to_the_guardian_however_a_driver_ends(
    guardians: dict[bool, GuardianLink], monkeypatch: pytest.MonkeyPatch, has_guardian: bool, code: int
) -> None:
    paths: list[Path] = []

    def serve(task: DriverTask, address: str | None) -> int:
        paths.append(task.state_path)
        task.state_path.write_text("{}")
        return code

    monkeypatch.setattr(driver_process, "_serve", serve)
    monkeypatch.setattr(driver_process, "_end_on_signal", lambda: None)  # handlers of signals are the test runner's
    monkeypatch.setattr(GuardianLink, "is_alive", has_guardian)
    assert run_driver(guardians[True], LOCAL, NAMED, timings=False) == code
    assert [path.exists() for path in paths] == [has_guardian]


def test_a_driver_that_dies_before_it_knows_better_leaves_what_the_one_before_it_knew(
    guardians: dict[bool, GuardianLink],
) -> None:
    guardian = guardians[True]
    folder = host_folders.run_folder()
    folder.mkdir()
    first = ClusterState("mine", guardian.pid, guardian.started, str(LOCAL), "m", url="http://127.0.0.1:1")
    first.admin_url, first.wanted, first.update = "http://127.0.0.1:2", {"prefill": 1, "decode": 3}, "updated"
    state_file.write(folder / "mine.json", first)
    before = state_before(guardian)
    assert before == first
    second = Driver(task_of(guardian, before, folder), None, Console(StringIO()))
    second._state_file.write()
    left = state_before(guardian)
    assert left is not None
    assert left.driver == os.getpid()
    assert (left.url, left.admin_url) == (first.url, first.admin_url)
    assert (left.wanted, left.update) == (first.wanted, first.update)


def test_a_driver_goes_by_what_was_wanted_last_even_if_that_was_nobody(guardians: dict[bool, GuardianLink]) -> None:
    guardian = guardians[True]
    before = ClusterState("mine", guardian.pid, guardian.started, str(LOCAL), "m")
    folder = host_folders.run_folder()

    def replicas(before: ClusterState | None) -> dict[Role, int]:
        task = task_of(guardian, before, folder)
        return Driver(task, None, Console(StringIO()))._replicas(task.config)

    as_configured = {"prefill": 1, "decode": 1}
    assert replicas(None) == as_configured
    assert replicas(before) == as_configured  # it died before it knew
    before.wanted = {"prefill": 0, "decode": 0}
    assert replicas(before) == before.wanted
    assert "0 x prefill (tp 1), 0 x decode (tp 1)" in driver_process.describe(NAMED.load(LOCAL), before)


def test_operators_find_the_next_driver_by_the_port_and_the_token_of_the_one_before(
    guardians: dict[bool, GuardianLink],
) -> None:
    folder = host_folders.run_folder()
    folder.mkdir()
    path = folder / "mine.json"
    states: list[ClusterState | None] = [None]
    for _ in range(2):
        driver = Driver(task_of(guardians[True], states[-1], folder), None, Console(StringIO()))
        driver._services.listen()
        assert driver._services._admin_server is not None
        driver._services._admin_server.close()
        driver._state_file.write()
        states.append(state_file.read(path))
    _, first, second = states
    assert first is not None
    assert second is not None
    assert first.operator_token
    assert (first.operator_token, first.operator_url) == (second.operator_token, second.operator_url)


@pytest.mark.parametrize(
    ("name", "digest", "version"),
    [
        ("derived", "as before", "as before-2"),  # by whatever name: answers continue
        ("derived", "other", "derived"),
        ("march", "other", "march-3"),  # a name that was given by the configuration was used for other content
    ],
)
def test_a_version_is_called_as_before_unless_its_files_are_others(
    guardians: dict[bool, GuardianLink], name: str, digest: str, version: str
) -> None:
    guardian = guardians[True]
    before = ClusterState("mine", guardian.pid, guardian.started, str(LOCAL), "m")
    before.version, before.content, before.names = "as before-2", "as before", ["march", "march-2", "as before-2"]
    console = StringIO()
    driver = Driver(task_of(guardian, before, host_folders.run_folder()), None, Console(console))
    driver._versions.name({driver._state.model: ModelContent(name, digest, Manifest(()))})
    assert (driver._state.version, driver._state.content) == (version, digest)
    assert version in driver._state.names
    assert (f"they are served as version {version}" in console.getvalue()) == (digest == "other")


def test_a_cluster_that_was_killed_is_told_of_by_the_next_one_of_its_name(
    guardians: dict[bool, GuardianLink], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = host_folders.run_folder()
    folder.mkdir()
    state_file.write(folder / "mine.json", ClusterState("mine", 2**22, 1.0, str(LOCAL), "m"))  # above all pids
    monkeypatch.setattr(driver_process, "_serve", lambda task, address: 0)
    monkeypatch.setattr(driver_process, "_end_on_signal", lambda: None)
    assert run_driver(guardians[False], LOCAL, NAMED, timings=False) == 0
    assert "the cluster that was called mine has ended: its guardian (pid 4194304) was killed" in capfd.readouterr().err


@pytest.mark.parametrize("becomes", ["[", "model: {path: elsewhere}\n", None])
def test_the_next_driver_goes_on_with_what_was_served_whatever_has_become_of_the_file(
    guardians: dict[bool, GuardianLink], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, becomes: str | None
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"model: {{path: {NAMED.load(LOCAL).model.path}}}\ndrain_timeout_s: 7.5\n")
    tasks: list[DriverTask] = []

    def serve(task: DriverTask, address: str | None) -> int:
        tasks.append(task)
        Driver(task, None, Console(StringIO()))._state_file.write()
        task.guardian.ready()
        return 1

    monkeypatch.setattr(driver_process, "_serve", serve)
    monkeypatch.setattr(driver_process, "_end_on_signal", lambda: None)
    run_driver(guardians[False], path, Overrides("mine", 0), timings=False)
    if becomes is None:
        path.unlink()
    else:
        path.write_text(becomes)
    run_driver(guardians[True], path, Overrides("mine", 0), timings=False)
    first, second = tasks
    assert second.config == first.config
    assert second.config.drain_timeout_s == 7.5
    assert second.config_path == path


def test_where_the_state_has_no_configuration_that_we_know_the_file_has(
    guardians: dict[bool, GuardianLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    guardian, tasks = guardians[True], []
    folder = host_folders.run_folder()
    folder.mkdir()
    old = ClusterState("mine", guardian.pid, guardian.started, str(LOCAL), "m", served={"model": {"from": "before"}})
    state_file.write(folder / "mine.json", old)
    monkeypatch.setattr(driver_process, "_serve", lambda task, address: tasks.append(task) or 0)
    monkeypatch.setattr(driver_process, "_end_on_signal", lambda: None)
    assert run_driver(guardian, LOCAL, NAMED, timings=False) == 0
    assert [task.config for task in tasks] == [NAMED.load(LOCAL)]


def test_a_signal_that_came_before_the_driver_could_handle_it_is_an_end_in_order(
    guardians: dict[bool, GuardianLink], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def end() -> None:
        raise driver_process.Interrupted

    monkeypatch.setattr(driver_process, "_end_on_signal", end)
    assert run_driver(guardians[False], LOCAL, NAMED, timings=False) == INTERRUPTED
    assert capfd.readouterr().err == "slipstream: interrupted before it was up\n"
