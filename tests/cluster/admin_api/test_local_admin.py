"""Operators' commands for a cluster on this machine whose driver ends meanwhile, and is followed by another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slipstream.cluster.admin_api.client import local_admin
from slipstream.cluster.cli import main
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterPhase, ClusterState

Answer = dict[str, Any] | None


def fleet(num_decode: int, *, leaving: str = "", added: list[str] | None = None) -> dict[str, Any]:
    """What `/v1/fleet` says of so many decode workers and one that is leaving."""
    names = [f"decode-{n}" for n in range(num_decode + bool(leaving))]
    members = [
        {"name": name, "role": "decode", "state": "ready", "detail": "", "startup_s": [], "is_leaving": name == leaving}
        for name in names
    ]
    counts = {"num_prefill": 0, "num_decode": num_decode}
    return {**counts, "members": members, "added": added or [], "warning": None}


class Api:
    """Answers calls in order; None: hangs up without a word, as a driver does that is killed."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[str] = []
        self.hung_up: Callable[[], None] = lambda: None
        api = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                api.asked.append(f"{self.command} {self.path}")
                answer = api.answers.pop(0)
                if answer is None:
                    api.hung_up()
                    self.close_connection = True
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            do_GET = do_POST = answer  # noqa: N815 - the names that the base class looks for

            def log_message(self, format: str, *arguments: object) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


class Here:
    """A cluster whose guardian is this process, and whose drivers are processes that do nothing."""

    def __init__(self, folder: Path) -> None:
        self.api = Api()
        self.api.hung_up = self.kill
        self._path = folder / "mine.json"
        self._drivers: list[subprocess.Popen[bytes]] = []
        self.phases: list[ClusterPhase] = []  # of the next driver, one at each look

    def begin(self, phase: ClusterPhase) -> None:
        """The next driver."""
        self._drivers.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        self._write(phase, self._drivers[-1].pid)

    def kill(self) -> None:
        self._drivers[-1].kill()
        self._drivers[-1].wait()

    def end(self) -> None:
        self._path.unlink()

    def looked_at(self, seconds: float) -> None:
        """Stands for the time that a command waits between two looks."""
        if not self.phases:
            return
        phase = self.phases.pop(0)
        if self._drivers[-1].poll() is None:
            self._write(phase, self._drivers[-1].pid)
        else:
            self.begin(phase)

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()
            driver.communicate()

    def _write(self, phase: ClusterPhase, driver: int) -> None:
        ours, theirs = process_tree.start_time(os.getpid()), process_tree.start_time(driver)
        assert ours is not None
        assert theirs is not None
        state = ClusterState("mine", os.getpid(), ours, "c.yaml", "m", phase)
        state.driver, state.driver_started = driver, theirs
        state.operator_url, state.operator_token = self.api.url, "t"
        state_file.write(self._path, state)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    host_folders.run_folder().mkdir()
    cluster = Here(host_folders.run_folder())
    monkeypatch.setattr(local_admin.time, "sleep", cluster.looked_at)
    cluster.api.thread.start()
    yield cluster
    cluster.api.server.shutdown()
    cluster.api.thread.join()
    cluster.api.server.server_close()
    cluster.close()


def slipstream(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize("phase", ["starting", "draining"])
def test_scale_waits_for_a_cluster_that_is_not_up(here: Here, phase: ClusterPhase) -> None:
    here.begin(phase)
    here.phases = [phase, "ready"]
    here.api.answers = [fleet(1), fleet(2, added=["decode-1"])]
    done = slipstream("scale", "decode=2")
    assert (done.exit_code, done.stdout) == (0, "decode-1: decode, ready\n")
    assert done.stderr == f"slipstream: mine is {phase}; waiting for it\n"


def test_scale_ends_by_saying_how_many_workers_have_no_room(here: Here) -> None:
    here.begin("ready")
    here.phases = ["ready"]
    full = fleet(4, added=["decode-1", "decode-2", "decode-3"])
    for member in full["members"][2:]:
        member |= {"state": "pending", "detail": "no node has 1 CPU free"}
    here.api.answers = [fleet(1), full]
    done = slipstream("scale", "decode=4")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "2 of 3 wait for room: no node has 1 CPU free"


def test_scale_waits_between_two_drivers(here: Here) -> None:
    here.begin("ready")
    here.kill()
    here.phases = ["starting", "ready"]
    here.api.answers = [fleet(1), fleet(1)]
    done = slipstream("scale", "decode=1")
    assert (done.exit_code, done.stdout) == (0, "nothing to change\n")
    assert done.stderr == "slipstream: mine is starting again; waiting for it\n"


def test_scale_is_asked_again_if_the_driver_ends_before_it_has_answered(here: Here) -> None:
    here.begin("ready")
    here.phases = ["ready"]
    here.api.answers = [fleet(1), None, fleet(2, added=["decode-1"])]
    done = slipstream("scale", "decode=2")
    assert (done.exit_code, done.stdout) == (0, "decode-1: decode, ready\n")
    assert here.api.asked == ["GET /v1/fleet", "POST /v1/fleet/scale", "POST /v1/fleet/scale"]


@pytest.mark.parametrize(
    ("num_decode", "code", "said"),
    [
        (1, 0, "with 0 prefill and 1 decode workers, which is what was to be there"),
        (2, 1, "with 0 prefill and 2 decode workers; 0 prefill and 1 decode were to be there"),
    ],
)
def test_a_drain_during_which_the_driver_ends_is_done_if_there_are_as_many_workers_as_there_were_to_be(
    here: Here, num_decode: int, code: int, said: str
) -> None:
    here.begin("ready")
    here.phases = ["ready"] * 3  # a look at the fleet is one, too
    here.api.answers = [fleet(1, leaving="decode-0"), None, fleet(num_decode)]
    done = slipstream("drain", "decode-0")
    assert (done.exit_code, done.stdout) == (code, "decode-0: decode, leaving\n")
    assert done.stderr.splitlines()[-1] == f"slipstream: the cluster has started again meanwhile, {said}"


@pytest.mark.parametrize("words", [("drain", "decode-0"), ("role", "decode-0", "prefill")])
def test_nobody_drains_workers_that_have_the_names_of_those_before(here: Here, words: tuple[str, ...]) -> None:
    here.begin("ready")
    here.kill()
    done = slipstream(*words)
    assert done.exit_code == 1
    assert done.stderr == "slipstream: mine is not up, and its workers will be others; nothing has been done\n"
    assert here.api.asked == []


def test_nobody_drains_workers_of_the_next_driver_if_the_one_before_ends_as_the_command_begins(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.begin("ready")
    here.phases = ["ready"]
    here.api.answers = [None]
    real = process_tree.is_running

    def is_running(pid: int, started: float) -> bool:
        found = real(pid, started)
        if pid != os.getpid():
            here.kill()
        return found

    monkeypatch.setattr(process_tree, "is_running", is_running)
    done = slipstream("drain", "decode-0")
    assert done.exit_code == 1
    assert "waiting for it" not in done.stderr
    assert "the driver of mine ended before it had answered, so this is probably not done" in done.stderr


def test_a_drain_that_was_not_answered_is_not_asked_for_again(here: Here) -> None:
    here.begin("ready")
    here.api.answers = [None]
    done = slipstream("drain", "decode-0")
    assert done.exit_code == 1
    assert "the driver of mine ended before it had answered, so this is probably not done" in done.stderr
    assert here.api.asked == ["POST /v1/workers/decode-0/drain"]


def test_a_driver_that_lives_and_does_not_answer_is_an_error(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_admin, "ENDING_S", 0.0)
    here.api.hung_up = lambda: None
    here.begin("ready")
    here.api.answers = [None]
    done = slipstream("scale", "decode=1")
    assert done.exit_code == 1
    assert f"the admin API at {here.api.url} cannot be reached" in done.stderr


def test_nobody_waits_for_a_cluster_that_has_ended(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.begin("ready")
    here.kill()
    monkeypatch.setattr(local_admin.time, "sleep", lambda seconds: here.end())
    done = slipstream("scale", "decode=1")
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "slipstream: mine is starting again; waiting for it",
        "slipstream: mine has ended",
    ]


def test_a_driver_that_cannot_write_its_state_is_asked_itself(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_admin, "BEHIND_S", 0.0)
    here.api.hung_up = lambda: None
    here.begin("ready")
    here.kill()
    here.api.answers = [None, fleet(1), fleet(1), fleet(1), fleet(1)]  # it is asked at each call
    done = slipstream("scale", "decode=1")
    assert (done.exit_code, done.stdout) == (0, "nothing to change\n")


def update(phase: str | None, *, line: str, is_active: bool = False) -> dict[str, Any]:
    return {"phase": phase, "line": line, "is_active": is_active, "events": []}


@pytest.mark.parametrize(
    ("words", "phase", "then", "code"),
    [
        (("update", "c.yaml"), "rolling", "cut_short", 1),
        (("update", "c.yaml"), "rolling", "done", 0),
        (("rollback",), "rolling_back", "cut_short", 0),  # what served before the update serves again
        (("rollback",), "rolling", "cut_short", 1),
    ],
)
def test_an_update_during_which_the_driver_ends_says_what_has_become_of_it(
    here: Here, words: tuple[str, ...], phase: str, then: str, code: int
) -> None:
    here.begin("ready")
    here.phases = ["ready"] * 3
    here.api.answers = [update(phase, line="", is_active=True), None, update(then, line="what became of it")]
    done = slipstream(*words)
    assert (done.exit_code, done.stdout) == (code, "what became of it\n")
    assert "mine is starting again; waiting for it" in done.stderr
