"""The examples of the documentation run, as it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.clients.free_port import free_port

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
WORKER = ROOT / "docs" / "protocol" / "echo_worker.py"
MODEL_DIR = ROOT / "models" / "slipstream-demo"


def test_pages_go_from_one_program_to_another() -> None:
    with program(EXAMPLES / "kv_transfer_receiver.py") as receiver:
        ticket = first_line(receiver)
        sender = subprocess.run(
            [sys.executable, EXAMPLES / "kv_transfer_sender.py", ticket], capture_output=True, text=True, timeout=60
        )
        received, _ = receiver.communicate(timeout=60)
    assert (sender.returncode, receiver.returncode) == (0, 0)
    assert (sender.stdout.startswith("Sent("), received.startswith("Received(")) == (True, True)
    sums = sender.stdout.splitlines()[-1]
    assert received.splitlines()[-1] == sums
    assert len(set(json.loads(sums.partition(": ")[2]))) == 16  # of random pages


def test_a_planner_of_ones_own_runs_in_the_simulator() -> None:
    with program(EXAMPLES / "own_planner.py") as run:
        shown, _ = run.communicate(timeout=100)
    assert run.returncode == 0
    assert "the default planner: 100.0% of the requests within both levels" in shown
    assert "own_planner.WaitingPlanner: " in shown
    assert ": most slots are free" in shown


def test_the_worker_of_the_documentation_serves_an_extended_router_behind_an_application(tmp_path: Path) -> None:
    port = str(free_port())
    with site(tmp_path) as url, httpx.Client(base_url=url) as client:
        refused = client.post("/v1/chat/completions", json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "user_required")
        cut = client.post("/v1/chat/completions", json=chat(user="me", max_tokens=3000)).json()
        assert cut["usage"]["completion_tokens"] == 256
        summary = client.post("/v1/summaries", json={"model": "chat", "text": "a story"}).json()["summary"]
        assert "Summarise in one sentence: a story" in summary  # the worker repeats its prompt
        too_long = client.post("/v1/summaries", json={"model": "chat", "text": 2001 * "a"})
        assert (too_long.status_code, too_long.json()["error"]["code"]) == (413, "text_too_long")
        for path in ("/v1/summaries", "/v1/chat/completions"):  # a client's mistake is no failure of the extension
            for body in (b"{", b"[]", b'{"model": "chat", "user": "me", "text": 7, "max_tokens": "x"}'):
                assert client.post(path, content=body).status_code == 400, (path, body)
        application = program(
            "-m", "uvicorn", "fastapi_front:app", "--port", port, "--log-level", "warning", ROUTER=url
        )
        with application, httpx.Client(base_url=f"http://127.0.0.1:{port}") as front:
            wait_until(lambda: answers(front))
            with front.stream("POST", "/v1/chat/completions", json=chat(user="me", stream=True)) as response:
                events = [line for line in response.iter_lines() if line]
            assert (response.status_code, events[-1]) == (200, "data: [DONE]")
            assert response.headers["content-type"].startswith("text/event-stream")
            refused = front.post("/v1/chat/completions", json=chat())
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "user_required")


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 8, **fields}


@contextmanager
def program(*command: str | Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A program of an example, until the end of the context."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES), **environment},
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@contextmanager
def site(folder: Path) -> Iterator[str]:
    """The URL of a router with the extension of the documentation, over its worker."""
    config = folder / "router.yaml"
    extensions = {"summaries:Summaries": {"max_chars": 2000}}
    router_config = {"http": {"port": 0}, "extensions": extensions}
    config.write_text(
        yaml.safe_dump({"model": "chat", "model_dir": str(MODEL_DIR), "token": "secret", "router": router_config})
    )
    with program("-m", "slipstream.router.main", "--config", config) as router:
        listening = json.loads(first_line(router))
        worker = program(WORKER, listening["workers"], "chat", SLIPSTREAM_WORKER_TOKEN="secret")
        with worker, httpx.Client(base_url=listening["http"]) as client:
            wait_until(lambda: client.get("/health/ready").status_code == 200)
            yield listening["http"]


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/hello").status_code == 200
    except httpx.TransportError:
        return False


def wait_until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
