"""The state files of running clusters: who has which name, and which files are stale."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from slipstream.cluster import processes, run_state
from slipstream.cluster.run_state import AlreadyRunning, ClusterState, MemberStatus, StateFile


def own_state(name: str = "a") -> ClusterState:
    started = processes.start_time(os.getpid())
    assert started is not None
    return ClusterState(name=name, pid=os.getpid(), started=started, config="/c.yaml", model="m", url="http://h:1")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    state = own_state()
    state.members = [MemberStatus("decode-0", "decode", "ready", "fine", [1, 2], 3, 4.5, [("load", 0.5)])]
    run_state.write(tmp_path / "a.json", state)
    assert run_state.read(tmp_path / "a.json") == state
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_state_that_cannot_be_written_leaves_the_old_one_and_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    path.mkdir()  # cannot be replaced by a file, not even by root
    run_state.write(path, own_state())
    assert f"{path} cannot be written: Is a directory" in caplog.text
    assert list(tmp_path.iterdir()) == [path]


def test_what_changes_in_a_row_is_written_once_and_what_must_be_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    real = run_state.write

    def noted(path: Path, state: ClusterState) -> None:
        written.append(state.phase)
        real(path, state)

    monkeypatch.setattr(run_state, "write", noted)
    monkeypatch.setattr(run_state, "SOON_S", 0.001)

    async def run() -> None:
        file = StateFile(tmp_path / "a.json", own_state())
        for number in range(100):
            file.state.members.append(MemberStatus(f"decode-{number}", "decode"))
            file.write_soon()
        async with asyncio.timeout(20):
            while not written:
                await asyncio.sleep(0.001)
        told = run_state.read(file.path)
        assert told is not None
        assert len(told.members) == 100
        file.write_soon()
        file.state.phase = "ready"
        file.write()
        assert written == ["starting", "ready"]
        await asyncio.sleep(0.01)  # the one for which nothing is left
        assert written == ["starting", "ready"]

    asyncio.run(run())


@pytest.mark.parametrize("contents", [b"", b"{", b"[]", b'{"name": "a"}', b'{"name": 1, "pid": "x"}', b"\xff"])
def test_a_file_that_is_none_of_ours_is_no_cluster_and_stays(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "a.json").write_bytes(contents)
    assert run_state.read_all(tmp_path) == []
    assert (tmp_path / "a.json").exists()


def test_a_running_cluster_is_listed(tmp_path: Path) -> None:
    run_state.write(tmp_path / "a.json", own_state())
    assert run_state.read_all(tmp_path) == [own_state()]


def test_the_file_of_a_driver_that_is_gone_is_removed(tmp_path: Path) -> None:
    gone = multiprocessing.get_context("spawn").Process(target=os.getpid)
    gone.start()
    assert gone.pid is not None
    state = own_state()
    state.pid = gone.pid
    gone.join()
    run_state.write(tmp_path / "a.json", state)
    assert run_state.read_all(tmp_path) == []
    assert not (tmp_path / "a.json").exists()


def test_a_name_is_taken_while_its_guardian_has_no_driver(tmp_path: Path) -> None:
    run_state.write(tmp_path / "a.json", own_state())
    with (
        pytest.raises(AlreadyRunning, match=f"a cluster named a runs already .pid {os.getpid()}"),
        run_state.claim("a", tmp_path, guardian=os.getppid()),
    ):
        pass
    with run_state.claim("a", tmp_path, guardian=os.getpid()) as path:  # its next driver
        assert path == tmp_path / "a.json"


def test_a_guardian_that_ends_takes_the_files_of_its_drivers_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    run_state.remove_those_of(os.getpid())  # there is no folder so far
    folder = run_state.run_folder()
    folder.mkdir()
    other = own_state("other")
    other.pid = os.getppid()
    run_state.write(folder / "a.json", own_state())
    run_state.write(folder / "other.json", other)
    run_state.remove_those_of(os.getpid())
    assert [path.name for path in folder.iterdir()] == ["other.json"]


def test_another_process_with_the_pid_of_the_driver_is_not_taken_for_it(tmp_path: Path) -> None:
    state = own_state()
    state.started -= 1.0
    run_state.write(tmp_path / "a.json", state)
    assert run_state.read_all(tmp_path) == []


def hold(folder: Path, held: Event, release: Event) -> None:
    with run_state.claim("a", folder, os.getpid()) as path:
        run_state.write(path, own_state())
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
            with run_state.claim("a", tmp_path, os.getpid()):
                pass
        with run_state.claim("b", tmp_path, os.getpid()):
            pass
        release.set()
        other.join(30)
        with run_state.claim("a", tmp_path, os.getpid()):
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
    with run_state.claim("a", tmp_path, os.getpid()) as path:
        assert path.exists()  # the stale file of the one before, about to be overwritten


def test_the_run_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with run_state.claim("a", run_state.run_folder(), os.getpid()) as path:
        assert path.parent == tmp_path / "slipstream"
        assert path.parent.stat().st_mode & 0o077 == 0
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run_state.run_folder() == tmp_path / "cache" / "slipstream" / "run"


def test_a_path_that_is_no_text_is_told_with_question_marks(tmp_path: Path) -> None:
    state = own_state()
    state.config = "/conf/\udcff.yaml"
    run_state.write(tmp_path / "a.json", state)
    found = run_state.read(tmp_path / "a.json")
    assert found is not None
    assert found.config == "/conf/?.yaml"
