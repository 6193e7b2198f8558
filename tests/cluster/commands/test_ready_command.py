"""What `slipstream ready` says of routers that answer, refuse, or are not there."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.commands.ready_command import ready_command
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterState

Announce = Callable[[str, str], None]
NOT_READY = b'{"error": {"message": "no decode worker"}}'


@pytest.fixture
def announce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Announce:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    host_folders.run_folder().mkdir()
    started = process_tree.start_time(os.getpid()) or 0.0

    def write(name: str, url: str) -> None:
        state = ClusterState(name, os.getpid(), started, "/c.yaml", "m", "starting", url)
        state_file.write(host_folders.run_folder() / f"{name}.json", state)

    return write


@pytest.fixture
def router() -> Iterator[Callable[[int], str]]:
    """Starts a server that answers with a status, and gives its URL."""
    servers: list[HTTPServer] = []

    def start(status: int) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(NOT_READY if status == 503 else b"{}")

            def log_message(self, *_: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=servers[-1].serve_forever).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ready(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(ready_command, arguments)
    return result.exit_code, result.output


def test_without_a_cluster_it_fails(announce: Announce) -> None:
    assert ready() == (1, "slipstream: no cluster runs here\n")


def test_a_router_that_is_ready_is_success(announce: Announce, router: Callable[[int], str]) -> None:
    announce("one", router(200))
    assert ready() == (0, "")
    assert ready("two") == (1, "slipstream: no cluster named two runs here\n")


def test_one_of_two_that_is_not_ready_is_a_failure_with_its_reason(
    announce: Announce, router: Callable[[int], str]
) -> None:
    announce("one", router(200))
    announce("two", router(503))
    assert ready() == (1, "slipstream: two is not ready: no decode worker\n")
    assert ready("one") == (0, "")


def test_a_cluster_without_a_router_says_what_it_does(announce: Announce) -> None:
    announce("one", "")
    assert ready() == (1, "slipstream: one is not ready: it is starting\n")


def test_a_router_that_does_not_answer_is_given_up(announce: Announce) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        announce("one", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert ready("--timeout", "0.2") == (1, "slipstream: one is not ready: no answer within 0.2 s\n")
    code, said = ready("--timeout", "5")
    assert code == 1
    assert "one is not ready: " in said
