"""What is measured, as processes on this machine: a router or a peer's frontend, with workers that run no model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import yaml

from slipstream.router.http.failover.holder.socket_holder import SocketHolder

ROOT = Path(__file__).resolve().parents[3]
MODEL = "bench"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
Shape = Literal["1p1d", "2d", "2p2d"]
SHAPES: dict[Shape, tuple[int, int]] = {"1p1d": (1, 1), "2d": (0, 2), "2p2d": (2, 2)}  # prefill, decode workers
ALWAYS_LOCAL = 10**9


class StackError(Exception):
    """A process did not start or ended; the message says which, and the end of its log."""


@dataclass(frozen=True, slots=True)
class Stack:
    """`processes` are the main ones by role ("router", "workers"); each may have children."""

    name: str
    url: str
    processes: dict[str, list[subprocess.Popen[bytes]]]

    def pids(self) -> dict[str, list[int]]:
        """By role; the processes below the router are its "fronts"."""
        pids = {role: [process.pid for process in processes] for role, processes in self.processes.items()}
        if "router" in pids:
            pids["fronts"] = [child.pid for pid in pids["router"] for child in family(pid)]
        return pids


def family(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@contextmanager
def slipstream(
    model_dir: Path,
    shape: Shape,
    settings: dict[str, str],
    router: dict[str, object],
    root: Path = ROOT,
    kept: bool = True,
) -> Iterator[Stack]:
    """A router as a plain program and one process with all mock workers of each role, from the checkout `root`. With
    prefill workers every prompt goes to one, without, none does. `settings` are those of the mock workers' profile,
    `router` goes into the router's config. Its clients are `kept`, as in a cluster, if that version knows how."""
    num_prefill, num_decode = SHAPES[shape]
    dispatch = {"local_prefill_max_tokens": 0 if num_prefill else ALWAYS_LOCAL}
    config = {
        "model": MODEL,
        "model_dir": str(model_dir),
        "token": "bench",
        "has_prefill_pool": bool(num_prefill),
        "router": merged({"http": {"port": 0}, "dispatch": dispatch}, router),
    }
    with tempfile.TemporaryDirectory() as directory, ExitStack() as running:
        folder = Path(directory)
        if kept and "keeper" in (root / "router" / "main.py").read_text():
            keeper = SocketHolder()
            running.callback(keeper.close)
            config["keeper"] = str(keeper.path)
        (folder / "router.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "slipstream.router.main", "--config", str(folder / "router.yaml")]
        front = running.enter_context(process("router", command, folder, {}, subprocess.PIPE, root))
        assert front.stdout is not None
        line = front.stdout.readline()
        if not line:
            raise StackError(f"the router did not start:\n{(folder / 'router.log').read_text()[-2000:]}")
        addresses = json.loads(line)
        workers = []
        for role, count in (("prefill", num_prefill), ("decode", num_decode)):
            if count:
                command = [sys.executable, "-m", "slipstream.workers.mock.main", "--router", addresses["workers"]]
                command += ["--role", role, "--model", MODEL, "--count", str(count)]
                for key, value in settings.items():
                    command += ["--set", f"{key}={value}"]
                token = {"SLIPSTREAM_WORKER_TOKEN": "bench"}
                workers.append(running.enter_context(process(role, command, folder, token, None, root)))
        wait_ready(f"{addresses['http']}/health/ready", None, folder)
        name = "slipstream" if root == ROOT else f"slipstream in {root.name}"
        if not kept:
            name += ", clients not kept"
        yield Stack(name, addresses["http"], {"router": [front], "workers": workers})


@contextmanager
def dynamo(venv: Path, model_dir: Path, shape: Shape, mode: str, mocker_args: list[str]) -> Iterator[Stack]:
    """NVIDIA Dynamo's frontend with its mocker workers, without etcd and NATS; `mode` is its --router-mode."""
    num_prefill, num_decode = SHAPES[shape]
    port = free_port()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as running:
        folder = Path(directory)
        environment = {
            "DYN_FILE_KV": str(folder / "kv"),
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
        }
        (folder / "kv").mkdir()
        python = str(venv / "bin" / "python")
        command = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
        front = running.enter_context(process("frontend", [*command, "--router-mode", mode], folder, environment))
        command = [python, "-m", "dynamo.mocker", "--model-path", str(model_dir), "--model-name", MODEL, *mocker_args]
        prefill, decode = ["--disaggregation-mode", "prefill"], ["--disaggregation-mode", "decode"]
        roles = [prefill] * num_prefill + [decode if num_prefill else []] * num_decode
        workers = [
            running.enter_context(process(f"mocker{number}", [*command, *role], folder, environment))
            for number, role in enumerate(roles)
        ]
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        wait_ready(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), folder)
        yield Stack(f"dynamo {mode}", f"http://127.0.0.1:{port}", {"router": [front], "workers": workers})


@contextmanager
def process(
    name: str,
    command: list[str],
    folder: Path,
    environment: dict[str, str],
    stdout: int | None = None,
    cwd: Path = ROOT,
) -> Iterator[subprocess.Popen[bytes]]:
    """Ended at the end, gently first. Python programs find what is in `cwd` before what is installed."""
    with (folder / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(
            command, stdout=log if stdout is None else stdout, stderr=log, cwd=cwd, env=os.environ | environment
        )
    children: list[psutil.Process] = []
    try:
        yield running
    finally:
        if running.poll() is None:
            children = family(running.pid)
            running.send_signal(signal.SIGTERM)
        try:
            running.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        for child in children:
            if child.is_running():
                child.kill()
        if running.stdout is not None:
            running.stdout.close()


def wait_ready(url: str, body: bytes | None, folder: Path) -> None:
    """Until `url` answers with 200. Raises StackError."""
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    logs = "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in sorted(folder.glob("*.log")))
    raise StackError(f"{url} did not become ready:\n{logs}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def merged(base: dict[str, object], over: dict[str, object]) -> dict[str, object]:
    """`over` laid on `base`, objects field by field."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result
