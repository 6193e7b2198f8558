"""The state files of running clusters: who has which name, and which files are stale."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from slipstream.cluster.fleet.update_plan import Phase
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import clusters_here, host_folders, name_claim, state_file
from slipstream.cluster.state.cluster_state import ClusterState, MemberStatus
from slipstream.cluster.state.name_claim import AlreadyRunning
from slipstream.cluster.state.state_file import StateFile
from slipstream.cluster.terminal.command_error import CommandError


def own_state(name: str = "a") -> ClusterState:
    started = process_tree.start_time(os.getpid())
    assert started is not None
    return ClusterState(name=name, pid=os.getpid(), started=started, config="/c.yaml", model="m", url="http://h:1")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    state = own_state()
    state.members = [MemberStatus("decode-0", "decode", "ready", "fine", [1, 2], 3, 4.5, [("load", 0.5)])]
    state_file.write(tmp_path / "a.json", state)
    assert state_file.read(tmp_path / "a.json") == state
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_state_that_cannot_be_written_is_logged_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "AGAIN_S", 0.001)
    path, said = tmp_path / "a.json", list[str]()
    path.mkdir()  # cannot be replaced by a file, not even by root

    async def run() -> None:
        file.write()
        path.rmdir()
        async with asyncio.timeout(20):
            while state_file.read(path) != file.state:
                await asyncio.sleep(0.001)

    file = StateFile(path, own_state(), said.append)
    file.write()  # before a loop runs
    assert list(tmp_path.iterdir()) == [path]
    asyncio.run(run())
    failed, again = said
    assert failed.startswith(f"warning: {path} cannot be written: Is a directory; the cluster goes on")
    assert again == f"{path} could be written again"


def test_what_changes_in_a_row_is_written_once_and_what_must_be_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, warnings = list[str](), list[str]()
    real = state_file.write

    def noted(path: Path, state: ClusterState) -> None:
        written.append(state.phase)
        real(path, state)

    monkeypatch.setattr(state_file, "write", noted)
    monkeypatch.setattr(state_file, "SOON_S", 0.001)

    async def run() -> None:
        file = StateFile(tmp_path / "a.json", own_state(), warnings.append)
        for number in range(100):
            file.state.members.append(MemberStatus(f"decode-{number}", "decode"))
            file.write_soon()
        async with asyncio.timeout(20):
            while not written:
                await asyncio.sleep(0.001)
        state_read = state_file.read(file.path)
        assert state_read is not None
        assert len(state_read.members) == 100
        file.write_soon()
        file.state.phase = "ready"
        file.write()
        assert written == ["starting", "ready"]
        await asyncio.sleep(0.01)  # the one for which nothing is left
        assert written == ["starting", "ready"]

    asyncio.run(run())
    assert warnings == []


@pytest.mark.parametrize("contents", [b"", b"{", b"[]", b'{"name": "a"}', b'{"name": 1, "pid": "x"}', b"\xff"])
def test_a_file_that_is_none_of_ours_is_no_cluster_and_stays(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "a.json").write_bytes(contents)
    assert clusters_here.read_all(tmp_path) == []
    assert (tmp_path / "a.json").exists()


def test_a_running_cluster_is_listed(tmp_path: Path) -> None:
    state_file.write(tmp_path / "a.json", own_state())
    assert clusters_here.read_all(tmp_path) == [own_state()]


def gone() -> int:
    """The pid of a process that has ended."""
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    assert process.pid is not None
    process.join()
    return process.pid


def test_a_cluster_whose_guardian_was_killed_between_two_drivers_is_reported_once(tmp_path: Path) -> None:
    state, running = own_state(), own_state("b")
    state.pid = gone()
    for one in (state, running):
        state_file.write(tmp_path / f"{one.name}.json", one)
    assert clusters_here.read_all(tmp_path) == [running]
    assert clusters_here.sweep(tmp_path) == [state]
    assert state.last_words == f"its guardian (pid {state.pid}) was killed, or the machine went down"
    assert clusters_here.sweep(tmp_path) == []
    assert clusters_here.read_all(tmp_path) == [running]


def test_the_next_driver_claims_the_name_on_a_file_system_that_has_become_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = Path.open

    def only_reading(path: Path, mode: str = "r", *args: Any) -> Any:
        if mode != "r":
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real_open(path, mode, *args)

    with name_claim.claim("a", tmp_path, os.getpid()):
        pass
    monkeypatch.setattr(Path, "open", only_reading)
    again = name_claim.claim("a", tmp_path, os.getpid())
    with name_claim.claim("a", tmp_path, os.getpid()), pytest.raises(AlreadyRunning), again:
        pass


def test_a_folder_that_cannot_be_written_is_reported_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(_path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    state = own_state()
    state.pid = gone()
    state_file.write(tmp_path / "a.json", state)
    monkeypatch.setattr(Path, "unlink", unlink)
    assert clusters_here.sweep(tmp_path) == clusters_here.sweep(tmp_path) == [state]


def test_a_cluster_whose_driver_outlives_the_guardian_is_still_ending(tmp_path: Path) -> None:
    state = own_state()
    state.driver, state.driver_started, state.pid = state.pid, state.started, gone()
    state_file.write(tmp_path / "a.json", state)
    assert clusters_here.read_all(tmp_path) == []
    for _ in range(2):
        (ended,) = clusters_here.sweep(tmp_path)
        assert "was killed, and its driver" in ended.last_words
    assert str(name_claim._already_running("a", state)).startswith("the cluster named a is still ending: its guardian")


def test_a_command_for_a_cluster_that_was_killed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    state = own_state()
    state.pid = gone()
    host_folders.run_folder().mkdir()
    state_file.write(host_folders.run_folder() / "a.json", state)
    with pytest.raises(
        CommandError, match=rf"no cluster named a runs here; a has ended: its guardian .pid {state.pid}."
    ):
        clusters_here.cluster_here("a", "--url")


@pytest.mark.parametrize("phase", ["starting", "canary", "rolling", "rolling_back"])
def test_an_update_that_was_under_way_when_the_driver_died_is_cut_short(phase: Phase) -> None:
    before, between, after = own_state(), own_state(), own_state()
    before.update, before.update_phase = "groups are exchanged", phase
    between.carry_on(before)
    after.carry_on(between)
    for state in (between, after):
        assert state.update_phase == "cut_short"
        assert state.update == (
            "cut short by the end of the driver; what served before serves again (groups are exchanged)"
        )


@pytest.mark.parametrize("phase", [None, "done", "rolled_back"])
def test_an_update_that_had_ended_when_the_driver_died_is_reported_as_before(phase: Phase | None) -> None:
    before, after = own_state(), own_state()
    before.update, before.update_phase = "over", phase
    before.version, before.content = "1-2", "1"
    after.carry_on(before)
    assert (after.update, after.update_phase, after.version, after.content) == ("over", phase, "1-2", "1")


def test_a_cluster_is_up_while_it_serves_and_its_driver_lives() -> None:
    state = own_state()
    state.phase = "ready"
    assert not state.is_up
    state.driver, state.driver_started = state.pid, state.started
    assert state.is_up
    state.driver_started -= 1.0  # another process with its pid
    assert not state.is_up


def test_a_name_is_taken_while_its_guardian_has_no_driver(tmp_path: Path) -> None:
    state_file.write(tmp_path / "a.json", own_state())
    with (
        pytest.raises(AlreadyRunning, match=f"a cluster named a runs already .pid {os.getpid()}"),
        name_claim.claim("a", tmp_path, guardian=os.getppid()),
    ):
        pass
    with name_claim.claim("a", tmp_path, guardian=os.getpid()) as path:  # its next driver
        assert path == tmp_path / "a.json"


def test_a_guardian_that_ends_takes_the_files_of_its_drivers_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clusters_here.remove_those_of(os.getpid())  # there is no folder so far
    folder = host_folders.run_folder()
    folder.mkdir()
    other = own_state("other")
    other.pid = os.getppid()
    state_file.write(folder / "a.json", own_state())
    state_file.write(folder / "other.json", other)
    clusters_here.remove_those_of(os.getpid())
    assert [path.name for path in folder.iterdir()] == ["other.json"]


def test_another_process_with_the_pid_of_the_driver_is_not_taken_for_it(tmp_path: Path) -> None:
    state = own_state()
    state.started -= 1.0
    state_file.write(tmp_path / "a.json", state)
    assert clusters_here.read_all(tmp_path) == []


def hold(folder: Path, held: Event, release: Event) -> None:
    with name_claim.claim("a", folder, os.getpid()) as path:
        state_file.write(path, own_state())
        held.set()
        release.wait(30)


def test_a_name_is_had_once_at_a_time_and_free_again_afterwards(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, release))
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(AlreadyRunning, match=rf"named a runs already \(pid {other.pid}, http://h:1\)"):  # noqa: SIM117
            with name_claim.claim("a", tmp_path, os.getpid()):
                pass
        with name_claim.claim("b", tmp_path, os.getpid()):
            pass
        release.set()
        other.join(30)
        with name_claim.claim("a", tmp_path, os.getpid()):
            pass
    finally:
        release.set()
        other.join(30)
    assert other.exitcode == 0


def test_a_name_is_free_again_after_its_holder_was_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, never = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, never))
    other.start()
    assert held.wait(30)
    other.kill()
    other.join(30)
    with name_claim.claim("a", tmp_path, os.getpid()) as path:
        assert path.exists()  # the stale file of the one before, about to be overwritten


def test_the_run_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with name_claim.claim("a", host_folders.run_folder(), os.getpid()) as path:
        assert path.parent == tmp_path / "slipstream"
        assert path.parent.stat().st_mode & 0o077 == 0
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert host_folders.run_folder() == tmp_path / "cache" / "slipstream" / "run"


def test_a_path_that_is_no_text_is_told_with_question_marks(tmp_path: Path) -> None:
    state = own_state()
    state.config = "/conf/\udcff.yaml"
    state_file.write(tmp_path / "a.json", state)
    found = state_file.read(tmp_path / "a.json")
    assert found is not None
    assert found.config == "/conf/?.yaml"
