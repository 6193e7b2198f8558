"""What the guardian does when its driver ends, in one way or another; drivers are scripts here."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from slipstream.cluster.driver.driver_restarts import MAX_FRUITLESS
from slipstream.cluster.processes.guardian_link import RAY_ENDED
from slipstream.router.tensor_memory.stale_files import MIN_AGE_S

# Notes each of its starts in a file, and then does what the script says.
PREAMBLE = """
import asyncio, json, os, signal, subprocess, sys, time
from pathlib import Path
from slipstream.cluster.processes.guardian_link import GuardianLink
folder = Path(sys.argv[1])
guard = GuardianLink.of_this_process()
def note(**what):
    with (folder / "notes").open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), "is_again": guard.is_again, **what}) + "\\n")
note(keeper=str(guard.holder.path), has_keeper=guard.holder.path.exists(), inherits="SLIPSTREAM_GUARDIAN" in os.environ)
def wait_for_the_end():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    hear()
    note()
    time.sleep(60)
def hear():
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
"""
GUARD = "import sys; from slipstream.cluster.driver.guardian import guard; sys.exit(guard(sys.argv[1:]))"
LONG_PAUSE = "from slipstream.cluster.driver.driver_restarts import DriverRestarts as R; R.died = lambda *_: 600.0; "
SOON_S = 30.0


class Run:
    """A guardian whose driver is a script."""

    def __init__(self, folder: Path, script: str, guard: str = GUARD, **options: Any) -> None:
        self._notes = folder / "notes"
        path = folder / "driver.py"
        path.write_text(PREAMBLE + script)
        command = [sys.executable, "-c", guard, sys.executable, str(path), str(folder)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)

    @property
    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._notes.read_text().splitlines()] if self._notes.exists() else []

    def wait_for_notes(self, count: int) -> list[dict[str, Any]]:
        deadline_s = time.monotonic() + SOON_S
        while len(self.notes) < count:
            assert time.monotonic() < deadline_s, self.notes
            time.sleep(0.01)
        return self.notes

    def end(self) -> tuple[int, str]:
        """The exit code, and what was said."""
        _, said = self.process.communicate(timeout=SOON_S)
        return self.process.returncode, said


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    begun: list[Run] = []

    def start(script: str, **options: Any) -> Run:
        begun.append(Run(tmp_path, script, **options))
        return begun[-1]

    yield start
    for run in begun:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


def missing(path: Path) -> str:
    return str(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)))


def gone(pid: int) -> bool:
    """Within some time."""
    deadline_s = time.monotonic() + SOON_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_the_exit_code_of_a_driver_that_ends_by_itself_is_passed_on(begin: Callable[..., Run], code: int) -> None:
    run = begin(f"sys.exit({code})")
    assert run.end() == (code, "")
    assert [note["is_again"] for note in run.notes] == [False]


def test_shared_memory_of_a_process_that_was_killed_at_the_end_is_removed(begin: Callable[..., Run]) -> None:
    file = Path(f"/dev/shm/slipstream-{os.getpid()}-guardian")
    file.touch()
    wait_until_old = f"while time.time() - os.stat({str(file)!r}).st_ctime < {MIN_AGE_S}: time.sleep(0.01)\n"
    try:
        run = begin(wait_until_old + "sys.exit(0)")
        assert run.end() == (0, "")
        assert not file.exists()
    finally:
        file.unlink(missing_ok=True)


def test_systemd_hears_of_a_driver_that_serves_while_its_loop_runs(begin: Callable[..., Run], tmp_path: Path) -> None:
    script = """
hear()
async def serve():
    with guard.watched(lambda: None):
        guard.ready()
        while not (folder / "hang").exists():
            await asyncio.sleep(0.01)
        note()
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        time.sleep(60)
asyncio.run(serve())
"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(SOON_S)
        env = os.environ | {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "200000"}
        run = begin(script, env=env)
        heard = [systemd.recv(100)]
        while heard[-1] != b"READY=1\nSTATUS=serving":
            heard.append(systemd.recv(100))
        assert {systemd.recv(100), systemd.recv(100)} == {b"WATCHDOG=1"}
        (tmp_path / "hang").touch()
        run.wait_for_notes(2)
        while select.select([systemd], [], [], 0.5)[0]:  # what was on its way, and then nothing for five intervals
            assert systemd.recv(100) == b"WATCHDOG=1"
        run.process.terminate()
        assert systemd.recv(100) == b"STOPPING=1\nSTATUS=draining"
        assert run.end() == (0, "")


def test_a_driver_that_is_killed_before_it_was_up_has_no_successor(begin: Callable[..., Run]) -> None:
    run = begin("os.kill(os.getpid(), signal.SIGKILL)")
    code, said = run.end()
    assert code == 128 + signal.SIGKILL
    assert "the driver was killed (SIGKILL); everything has been stopped" in said
    assert len(run.notes) == 1


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "the driver was killed (SIGKILL)"),
        (f"os._exit({RAY_ENDED})", "Ray has ended under the cluster (killed?)"),
        ("sys.exit(1)", "the driver has ended with 1"),
        ("os.kill(os.getpid(), 40)", "the driver was killed (signal 40)"),
        ("sys.exit(0)", "the driver has ended with 0"),  # drained by somebody else's signal
    ],
)
def test_a_driver_that_has_served_is_followed_by_another_one(begin: Callable[..., Run], end: str, why: str) -> None:
    run = begin(f"if guard.is_again: wait_for_the_end()\nguard.ready()\n{end}")
    first, second, _ = run.wait_for_notes(3)
    run.process.terminate()
    code, said = run.end()
    assert code == 0
    assert f"{why}; starting again" in said
    assert (first["is_again"], second["is_again"]) == (False, True)
    assert first["keeper"] == second["keeper"]
    assert first["has_keeper"]
    assert second["has_keeper"]
    assert not first["inherits"]  # what the driver starts is not guarded by us
    assert not Path(first["keeper"]).parent.exists()


def test_a_guardian_whose_words_nobody_reads_any_more_goes_on(begin: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(
        "if guard.is_again: wait_for_the_end()\nguard.ready()\n"
        "while not (folder / 'end').exists(): time.sleep(0.01)\nsys.exit(1)"
    )
    run.wait_for_notes(1)
    assert run.process.stderr is not None
    run.process.stderr.close()  # as with `slipstream serve 2>&1 | head`
    run.process.stderr = None
    (tmp_path / "end").touch()
    run.wait_for_notes(3)
    run.process.terminate()
    assert run.end()[0] == 0


def test_a_signal_between_two_drivers_is_an_end_in_order(begin: Callable[..., Run]) -> None:
    run = begin("guard.ready()\nsys.exit(1)", guard=LONG_PAUSE + GUARD)
    assert run.process.stderr is not None
    assert "starting again" in run.process.stderr.readline()
    run.process.terminate()
    code, rest = run.end()
    assert (code, rest.count("interrupted before it was up again")) == (130, 1)


def test_starting_again_in_vain_has_an_end(begin: Callable[..., Run]) -> None:
    run = begin("if not guard.is_again: guard.ready()\nsys.exit(1)")
    assert run.end()[0] == 1
    assert len(run.notes) == 1 + MAX_FRUITLESS


def test_a_driver_that_cannot_even_be_started_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GUARD, str(tmp_path / "missing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SOON_S)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"slipstream: no driver can be started: {missing(tmp_path / 'missing')}"]


@pytest.mark.parametrize(
    ("sent", "heard"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGINT)],
)
def test_signals_are_passed_on_and_end_the_row_of_drivers(
    begin: Callable[..., Run], sent: signal.Signals, heard: signal.Signals
) -> None:
    run = begin(
        "signal.signal(signal.SIGINT, lambda *_: note(heard='SIGINT', successor=guard.starts_another))\n"
        "signal.signal(signal.SIGTERM, lambda *_: note(heard='SIGTERM', successor=guard.starts_another))\n"
        "guard.ready(); note(); hear()\n"
        "while True: time.sleep(0.01)"
    )
    driver = run.wait_for_notes(2)[0]["pid"]
    run.process.send_signal(sent)
    noted = run.wait_for_notes(3)[2]
    assert (noted["heard"], noted["successor"]) == (heard.name, False)
    os.kill(driver, signal.SIGKILL)  # it had got a signal to end, and then is killed
    said = "slipstream: the driver was killed (SIGKILL) when it was to end; everything has been stopped\n"
    assert run.end() == (128 + signal.SIGKILL, said)
    assert len(run.notes) == 3


def test_a_driver_knows_that_a_signal_is_not_its_guardians_and_that_it_has_a_successor(
    begin: Callable[..., Run],
) -> None:
    run = begin(
        "if guard.is_again: wait_for_the_end()\n"
        "def end(*_): note(successor=guard.starts_another); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "guard.ready(); note(); hear(); time.sleep(60)"
    )
    os.kill(run.wait_for_notes(2)[0]["pid"], signal.SIGTERM)
    *_, noted, again, _ = run.wait_for_notes(5)
    assert (noted["successor"], again["is_again"]) == (True, True)
    run.process.terminate()
    assert run.end()[0] == 0


def test_a_driver_that_is_told_to_end_does_not_take_its_guardian_for_gone(begin: Callable[..., Run]) -> None:
    run = begin(
        "async def main():\n"
        "    ordered = asyncio.Event()\n"
        "    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ordered.set)\n"
        "    with guard.watched(lambda: note(gone=True)):\n"
        "        guard.ready(); note(); hear()\n"
        "        await ordered.wait()\n"
        "        for _ in range(10): await asyncio.sleep(0)\n"  # as often as it takes to look at the link
        "asyncio.run(main())\n"
        "note(); sys.exit(0)"
    )
    run.wait_for_notes(2)
    run.process.terminate()
    assert run.end() == (0, "")
    assert [note for note in run.notes if "gone" in note] == []


def test_a_signal_that_comes_before_the_driver_can_handle_it_is_not_lost(begin: Callable[..., Run]) -> None:
    run = begin(
        "note(); time.sleep(0.3)\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nhear(); time.sleep(60)"
    )
    run.wait_for_notes(2)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 7


def test_a_terminal_that_is_closed_does_not_end_what_was_started_with_nohup(begin: Callable[..., Run]) -> None:
    run = begin(
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nguard.ready(); note(); hear(); time.sleep(60)",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    run.wait_for_notes(2)
    run.process.send_signal(signal.SIGHUP)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 7


def test_a_driver_has_standard_files_even_where_they_were_closed(begin: Callable[..., Run]) -> None:
    run = begin(
        "files = [os.path.realpath(f'/proc/self/fd/{fd}') for fd in (0, 1, 2)]\nnote(files=files); sys.exit(0)",
        preexec_fn=lambda: os.closerange(0, 3),
    )
    assert run.end() == (0, "")
    assert run.notes[1]["files"] == [os.devnull] * 3


def test_the_end_of_a_driver_is_noticed_even_if_whoever_started_us_ignores_the_end_of_children(
    begin: Callable[..., Run],
) -> None:
    run = begin("sys.exit(7)", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert run.end()[0] == 7


def test_what_a_driver_leaves_behind_is_ended_before_the_next_one_begins(begin: Callable[..., Run]) -> None:
    run = begin(
        "if guard.is_again:\n"
        "    note(lives=os.path.exists('/proc/' + (folder / 'orphan').read_text()))\n"
        "    wait_for_the_end()\n"
        "started = '; '.join(['import subprocess, sys', "
        '\'one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)\', '
        "'print(one.pid, flush=True)', 'import time', 'time.sleep(60)'])\n"
        "parent = subprocess.Popen([sys.executable, '-c', started], stdout=subprocess.PIPE, text=True)\n"
        "(folder / 'orphan').write_text(parent.stdout.readline().strip())\n"
        "parent.kill(); parent.wait()\n"
        "guard.ready(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    run.wait_for_notes(4)
    run.process.terminate()
    assert run.end()[0] == 0
    assert [note["lives"] for note in run.notes if "lives" in note] == [False]


def test_the_driver_hears_that_its_guardian_was_killed(begin: Callable[..., Run]) -> None:
    run = begin(
        "async def main():\n"
        "    gone = asyncio.Event()\n"
        "    with guard.watched(gone.set):\n"
        "        guard.ready(); note()\n"
        "        await gone.wait()\n"
        "    guard.ready()\n"  # there is no listener, and that is no error
        "    note(gone=True)\n"
        "asyncio.run(main())"
    )
    driver = run.wait_for_notes(2)[0]["pid"]
    run.process.kill()
    assert run.wait_for_notes(3)[2]["gone"]
    assert gone(driver)


def test_clients_of_the_router_before_are_let_go_where_the_driver_says_so(begin: Callable[..., Run]) -> None:
    run = begin("guard.holder.let_go(); note(); guard.holder.let_go(); sys.exit(0)")
    assert run.end() == (0, "")
    assert len(run.notes) == 2


def test_a_driver_that_watches_its_guardian_gets_its_answers_all_the_same(begin: Callable[..., Run]) -> None:
    run = begin(
        "async def main():\n"
        "    with guard.watched(lambda: note(gone=True)):\n"
        "        for _ in range(20):\n"
        "            await asyncio.to_thread(guard.holder.let_go)\n"
        "        note(answered=True)\n"
        "asyncio.run(main())\n"
        "sys.exit(0)"
    )
    assert run.end() == (0, "")
    assert [set(note) & {"gone", "answered"} for note in run.notes] == [set(), {"answered"}]
