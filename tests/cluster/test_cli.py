"""The command line: exit codes, one sentence for each mistake, and nothing left running."""

from __future__ import annotations

import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner

from slipstream.cluster.cli import COMMANDS, main
from slipstream.cluster.commands import down_command
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import name_claim, state_file
from slipstream.cluster.state.cluster_state import ClusterState, MemberStatus
from slipstream.cluster.state.cluster_status import describe, duration, router_status
from slipstream.router.status.load_signals import ClassSignals, Signals, Spread, WindowSignals

ROOT = Path(__file__).resolve().parents[2]
LOCAL = ROOT / "configs" / "local.yaml"
MODEL = ROOT / "models" / "slipstream-demo"


class CommandLine:
    """Runs `slipstream` with a home of its own, in a process group whose members can be counted afterwards."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "XDG_"))},
            "XDG_RUNTIME_DIR": str(home / "run"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_STATE_HOME": str(home / "state"),
            "PYTHONWARNINGS": "error",
        }
        (home / "run").mkdir()

    @property
    def states(self) -> Path:
        return self.home / "run" / "slipstream"

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "slipstream.cluster.cli", *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90
        )


@pytest.fixture
def slipstream(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(key, raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    done = CliRunner().invoke(main, ["status"])
    assert done.exit_code == 1
    assert "no home directory; set HOME" in done.stderr


def sentences(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


class StatusHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"num_running": 3}' if self.path == "/cluster/status" else b"[]")

    def log_message(self, format: str, *arguments: object) -> None:
        return


def test_a_proxy_does_not_come_between_status_and_router(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(key, "http://127.0.0.1:1")
    for key in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(key, raising=False)
    with HTTPServer(("127.0.0.1", 0), StatusHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert router_status(f"http://127.0.0.1:{server.server_port}") == {"num_running": 3}
        finally:
            server.shutdown()
            thread.join()


def test_check_accepts_what_is_right(slipstream: CommandLine) -> None:
    done = slipstream("check", LOCAL)
    assert done.returncode == 0
    assert done.stdout == (
        f"{LOCAL}: ok: slipstream-demo with 1 x prefill (tp 1), 1 x decode (tp 1), HTTP port 8000\n"
        f"{LOCAL}: slipstream-demo: calls of tools are read as slipstream-demo, reasoning as qwen3\n"
    )


def test_check_warns_of_what_is_hardly_meant(slipstream: CommandLine) -> None:
    path = slipstream.home / "c.yaml"
    engines = "prefill: {engine: {quantization: fp8}}\ndecode: {engine: {kv_cache_mib: 1000000000}}\n"
    path.write_text(f"model: {{path: {MODEL}}}\n{engines}")
    done = slipstream("check", "--elsewhere", path)
    assert done.returncode == 0
    assert "ok: slipstream-demo" in done.stdout
    quantization, memory = sentences(done)
    assert quantization.startswith(f"slipstream: warning: {path}: quantization is fp8 for prefill and none for decode")
    assert memory.startswith(f"slipstream: warning: {path}: decode.engine.kv_cache_mib is 1000000000, and this machine")


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_broken_configuration_is_one_sentence_and_exit_code_2(slipstream: CommandLine, command: str) -> None:
    path = slipstream.home / "c.yaml"
    path.write_text(f"model: {{path: {MODEL}}}\nprefil: {{replicas: 2}}\n")
    done = slipstream(command, path)
    assert done.returncode == 2
    assert sentences(done) == [f"slipstream: {path}:2: prefil: unknown setting; did you mean prefill?"]


def test_check_refuses_a_chat_template_that_is_not_valid(slipstream: CommandLine) -> None:
    model = slipstream.home / "model"
    shutil.copytree(MODEL, model)
    (model / "chat_template.jinja").write_text("{% if %}")
    path = slipstream.home / "c.yaml"
    path.write_text(f"model: {{path: {model}}}\nrouter: {{http: {{port: 0}}}}\n")
    done = slipstream("check", path)
    assert done.returncode == 2
    (only,) = sentences(done)
    assert only.startswith(f"slipstream: {path}: model.path: {model}: the chat template is not valid: ")


def test_a_missing_configuration_is_one_sentence_and_exit_code_2(slipstream: CommandLine) -> None:
    done = slipstream("serve", "nowhere.yaml")
    assert done.returncode == 2
    assert sentences(done) == ["slipstream: nowhere.yaml: no such file"]


@pytest.mark.parametrize("command", ["check", "serve"])
@pytest.mark.parametrize("which", ["http", "worker"])
def test_a_port_in_use_is_one_sentence_and_exit_code_2(slipstream: CommandLine, which: str, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        key = "router.http.port" if which == "http" else "router.worker_port"
        setting = f"http: {{port: {port}}}" if which == "http" else f"http: {{port: 0}}, worker_port: {port}"
        path = slipstream.home / "c.yaml"
        path.write_text(f"model: {{path: {MODEL}}}\nrouter: {{{setting}}}\n")
        done = slipstream(command, path)
    assert done.returncode == 2
    begin = f"slipstream: {path}: " if command == "check" else "slipstream: "
    assert sentences(done) == [
        f"{begin}{key}: port {port} at 127.0.0.1 is in use by another program; choose another one, or 0 for any"
    ]
    assert list(slipstream.states.glob("*.json")) == []


def test_what_is_wrong_with_a_model_that_is_served_without_a_file_names_the_model_and_the_option(
    slipstream: CommandLine,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = slipstream("serve", MODEL, "--port", str(port))
    in_use = f"port {port} at 127.0.0.1 is in use by another program; choose another one, or 0 for any"
    assert (done.returncode, sentences(done)) == (2, [f"slipstream: --port: {in_use}"])
    model = slipstream.home / "model"
    shutil.copytree(MODEL, model)
    (model / "generation_config.json").write_text('{"temperature": "hot"}')
    done = slipstream("serve", model, "--port", "0")
    (only,) = sentences(done)
    assert only.startswith(f"slipstream: {model}: ")
    assert "generation_config.json" in only
    assert str(slipstream.home / "cache") not in only


def test_check_rewrites_former_names_and_says_so(slipstream: CommandLine) -> None:
    path = slipstream.home / "c.yaml"
    path.write_text(f"model: {{path: {MODEL}}}\noperator: {{port: 0}}\n")
    warned = slipstream("check", "--elsewhere", path)
    assert warned.returncode == 0
    assert "operator: is called admin_api now" in warned.stderr
    done = slipstream("check", "--rewrite", path)
    assert (done.returncode, done.stdout) == (0, f"{path}:2: operator is now admin_api\n")
    assert path.read_text().endswith("admin_api: {port: 0}\n")
    assert slipstream("check", "--rewrite", path).stdout == f"{path}: has no former names\n"
    path.write_text("a: [")
    assert slipstream("check", "--rewrite", path).returncode == 2


@pytest.mark.parametrize(("command", "begin"), [("serve", "slipstream: "), ("check", "slipstream: {path}: ")])
@pytest.mark.parametrize("port", [8123, 0])
def test_an_address_that_is_not_ours_is_one_sentence(
    slipstream: CommandLine, command: str, begin: str, port: int
) -> None:
    path = slipstream.home / "c.yaml"
    path.write_text(f"model: {{path: {MODEL}}}\nrouter: {{http: {{host: 198.51.100.1, port: {port}}}}}\n")
    done = slipstream(command, path)
    assert done.returncode == 2
    (only,) = sentences(done)
    expected = "router.http.host: nothing can listen at 198.51.100.1 on this machine: "
    assert only.startswith(begin.format(path=path) + expected)


def test_check_leaves_this_machine_aside_where_another_one_is_to_serve(slipstream: CommandLine) -> None:
    path = slipstream.home / "c.yaml"
    path.write_text(f"model: {{path: {MODEL}}}\nrouter: {{http: {{host: 198.51.100.1}}}}\n")
    for ray, options in (("", ["--elsewhere"]), ("ray: {address: 'ray.example:6379'}\n", [])):
        path.write_text(f"model: {{path: {MODEL}}}\nrouter: {{http: {{host: 198.51.100.1}}}}\n{ray}")
        done = slipstream("check", *options, path)
        assert (done.returncode, sentences(done)) == (0, [])


def test_a_name_that_is_taken_is_one_sentence_and_exit_code_2(slipstream: CommandLine) -> None:
    with name_claim.claim("mine", slipstream.states, os.getpid()):
        done = slipstream("serve", LOCAL, "--name", "mine", "--port", "0")
    assert done.returncode == 2
    (only,) = sentences(done)
    assert only.startswith("slipstream: a cluster named mine runs already: stop it with `slipstream down mine`")


def test_a_second_start_names_the_cluster_and_not_the_port_that_it_has(slipstream: CommandLine) -> None:
    started = process_tree.start_time(os.getpid()) or 0.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        slipstream.states.mkdir(parents=True, exist_ok=True)
        running = ClusterState("mine", os.getpid(), started, str(LOCAL), "m", "ready", f"http://127.0.0.1:{port}")
        state_file.write(slipstream.states / "mine.json", running)
        done = slipstream("serve", LOCAL, "--name", "mine", "--port", str(port))
    assert done.returncode == 2
    (only,) = sentences(done)
    assert only.startswith(
        f"slipstream: a cluster named mine runs already (pid {os.getpid()}, http://127.0.0.1:{port})"
    )


def test_status_says_when_nothing_runs(slipstream: CommandLine) -> None:
    done = slipstream("status")
    assert (done.returncode, done.stdout) == (0, "no cluster runs here\n")
    done = slipstream("status", "ghost")
    assert (done.returncode, done.stdout) == (1, "no cluster named ghost runs here\n")
    assert slipstream("status", "--json").stdout == "[]\n"


def test_down_says_when_nothing_runs(slipstream: CommandLine) -> None:
    done = slipstream("down")
    assert done.returncode == 1
    assert sentences(done) == ["slipstream: no cluster runs here"]


def announce(slipstream: CommandLine, name: str, pid: int) -> None:
    started = process_tree.start_time(pid)
    assert started is not None
    slipstream.states.mkdir(parents=True, exist_ok=True)
    members = [MemberStatus("decode-0", "decode", "ready", "steady", [pid], 2)]
    state = ClusterState(name, pid, started, "/c.yaml", "m", "ready", "http://127.0.0.1:9", "/logs", members)
    state_file.write(slipstream.states / f"{name}.json", state)


def test_status_shows_the_members_of_every_cluster(slipstream: CommandLine) -> None:
    for name in ("one", "two"):
        announce(slipstream, name, os.getpid())
    lines = slipstream("status").stdout.splitlines()
    assert "one: ready, m at http://127.0.0.1:9" in lines
    assert "two: ready, m at http://127.0.0.1:9" in lines
    row = next(line.split() for line in lines if line.strip().startswith("decode-0"))
    assert row[:3] == ["decode-0", "decode", "ready"]
    assert row[-6:] == ["2", "-", "-", "-", str(os.getpid()), "steady"]
    for choice in (("one",), ("--name", "one")):
        shown = slipstream("status", *choice).stdout
        assert "one:" in shown
        assert "two:" not in shown
    both = slipstream("status", "one", "--name", "two")
    assert both.returncode == 2
    assert "give NAME or --name, not both" in both.stderr


def test_status_names_the_version_of_each_worker_while_there_are_several() -> None:
    members = [MemberStatus("router", "router")]
    members += [MemberStatus(f"decode-{n}", "decode", version=version) for n, version in enumerate(("v1", "v1"))]
    state = ClusterState("one", 1, 1.0, "/c.yaml", "m", "ready", "http://h:1", members=members, version="v1")
    assert "VERSION" not in list(describe(state, None))[3]
    state.members.append(MemberStatus("decode-2", "decode", version="v2"))
    rows = [line.split()[:3] for line in list(describe(state, None))[3:8]]
    assert rows[0] == ["NAME", "ROLE", "VERSION"]
    assert [row[2] for row in rows[1:]] == ["-", "v1", "v1", "v2"]


def test_status_joins_what_the_router_says_about_load() -> None:
    members = [MemberStatus("router", "router"), MemberStatus("decode-0", "decode", pids=[7])]
    state = ClusterState("one", 1, 1.0, "/c.yaml", "m", "ready", "http://h:1", members=members)
    worker = {"peer": {"name": "decode-0", "epoch": 1}, "num_requests": 3, "free_pages": 20, "num_pages": 64}
    lines = list(describe(state, {"num_running": 3, "num_waiting": 5, "workers": [worker]}))
    assert lines[0] == "one: ready, m at http://h:1, 3 running, 5 waiting"
    assert lines[1:3] == ["  prefill: none", "  decode: 1 new"]
    assert lines[3].split() == ["NAME", "ROLE", "STATE", "FOR", "RESTARTS", "REQUESTS", "FREE", "PAGES", "HOST", "PIDS"]
    assert lines[5].split()[-4:] == ["3", "20/64", "-", "7"]


def test_status_says_where_metrics_are_if_they_have_a_port_of_their_own() -> None:
    state = ClusterState("one", 1, 1.0, "/c.yaml", "m", "ready", "http://h:1")
    assert not any("metrics" in line for line in describe(state, None))
    assert "  metrics: http://h:2/metrics" in list(describe(replace(state, admin_url="http://h:2"), None))


def test_status_names_the_version_and_the_file_of_it_that_has_changed() -> None:
    state = ClusterState("one", 1, 1.0, "/c.yaml", "m", version="march")
    state.files = {"march": "/m/config.json is gone", "of an update that is over": "/m/config.json is gone"}
    state.members = [MemberStatus("decode-0", "decode", version="march")]
    lines = list(describe(state, None))
    assert "  version: march" in lines
    (line,) = [line for line in lines if line.startswith("  files: ")]
    assert line.startswith("  files: /m/config.json is gone; version march is served")
    assert "`slipstream update`" in line


def test_status_says_how_requests_fared_lately() -> None:
    quiet = WindowSignals(300.0)
    one = ClassSignals(0, 20, 0.5, 0.05, num_first=10, num_ttft_met=9, num_finished=8, num_itl_met=8, num_good=6)
    busy = WindowSignals(
        10.0,
        num_arrivals=20,
        num_refused=3,
        num_failed=2,
        ttft_s=Spread(10, p50=0.1, p99=0.4),
        itl_s=Spread(8, p50=0.004, p99=0.02),
        classes=(one,),
    )
    state = ClusterState("one", 1, 1.0, "/c.yaml", "m", "ready", "http://h:1")
    lines = list(describe(state, None, asdict(Signals(0.0, "r", 0.5, 0.05, 0, 0, 0.0, busy, quiet))))
    (line,) = [line for line in lines if line.startswith("  last")]
    assert line == (
        "  last 10 s: 2.0 requests/s; TTFT p50 100 ms, p99 400 ms, in time 90%; "
        "ITL p50 4 ms, p99 20 ms, in time 100%; SLO kept by 60%; 3 refused"
    )


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0 s"), (99, "99 s"), (100, "2 min"), (7200, "2 h")])
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_down_asks_which_one_when_there_are_several(slipstream: CommandLine) -> None:
    for name in ("one", "two"):
        announce(slipstream, name, os.getpid())
    done = slipstream("down")
    assert done.returncode == 2
    assert sentences(done) == ["slipstream: several clusters run here, say which one: one, two"]


def test_down_says_what_it_waits_for(slipstream: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in slipstream.environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(down_command, "PROGRESS_EVERY_S", 0.1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as guardian:
        announce(slipstream, "one", guardian.pid)
        path = slipstream.states / "one.json"
        state = state_file.read(path)
        assert state is not None
        state.phase, state.served = "draining", {"drain_timeout_s": 30.0}
        state_file.write(path, state)
        monkeypatch.setattr(psutil.Process, "send_signal", lambda process, number: None)
        asked: list[str] = []

        def load(url: str) -> dict[str, int]:
            asked.append(url)
            if len(asked) == 2:
                guardian.kill()
            return {"num_running": 3, "num_waiting": 1}

        monkeypatch.setattr(down_command, "router_status", load)
        done = CliRunner().invoke(main, ["down", "--name", "one"])
    begun = f"stopping one (pid {guardian.pid}); running requests may finish, for 30 s at most"
    assert done.stdout.splitlines() == [begun, "one is down"]
    assert done.stderr.splitlines() == ["slipstream: one: 3 requests running, 1 waiting after 0 s"] * 2


@pytest.mark.parametrize(("option", "number"), [((), "SIGINT"), (("--grace",), "SIGTERM")])
def test_down_ends_the_driver_and_waits_for_it(slipstream: CommandLine, option: tuple[str, ...], number: str) -> None:
    signals = "[signal.SIGINT, signal.SIGTERM]"
    code = f"print('up', flush=True); sys.exit(7 if signal.sigwait({signals}) == signal.{number} else 1)"
    blocked = f"import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signals}); {code}"
    with subprocess.Popen([sys.executable, "-c", blocked], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        announce(slipstream, "one", driver.pid)
        done = slipstream("down", *option, "one")
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("one is down\n")
        assert driver.wait(0) == 7


@pytest.mark.parametrize("command", ["status", "down"])
def test_a_cluster_that_was_killed_between_two_drivers_is_told_of_once(slipstream: CommandLine, command: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as guardian:
        announce(slipstream, "one", guardian.pid)
        guardian.kill()
    first, second = slipstream(command), slipstream(command)
    ended = (
        f"slipstream: warning: one has ended: its guardian (pid {guardian.pid}) was killed, or the machine went down"
    )
    assert sentences(first)[0] == ended
    assert "no cluster runs here" in first.stdout + first.stderr
    assert first.returncode == second.returncode == (1 if command == "down" else 0)
    assert ended not in second.stderr


def test_down_says_that_nobody_is_there_to_answer_those_who_wait_for_the_next_driver(slipstream: CommandLine) -> None:
    # Python leaves SIGINT ignored where it was so at its start, as in the background of a shell.
    def heed_sigint() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=heed_sigint) as guardian:
        announce(slipstream, "one", guardian.pid)
        done = slipstream("down")
    begun = f"stopping one (pid {guardian.pid}), which is not up; requests that wait for it end"
    assert done.stdout.splitlines() == [begun, "one is down"]


def test_down_does_not_touch_a_process_that_only_has_the_pid(slipstream: CommandLine) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        announce(slipstream, "one", stranger.pid)
        path = slipstream.states / "one.json"
        state = state_file.read(path)
        assert state is not None
        state.started -= 5.0
        state_file.write(path, state)
        assert slipstream("down", "one").returncode == 1
        assert stranger.poll() is None
        stranger.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_where_the_table_says(name: str) -> None:
    command = pkgutil.resolve_name(COMMANDS[name])
    assert isinstance(command, click.Command)
    assert command.name == name
