"""A cluster for tests with the clients that people use. They run in an environment of their own (`requirements.txt`),
which has none of Slipstream's packages: the cluster is a program of the project's environment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = "slipstream-demo"
START_TIMEOUT_S = 150.0
CONFIG = """
name: clients-{port}
model: {path: {root}/models/slipstream-demo}
engine: {dtype: float32, device: cpu, kv_cache_mib: 32, num_threads: 1}
router: {http: {port: {port}}}
"""
TENSOR_CONFIG = """
name: clients-tensors-{port}
repository: {paths: [{root}/configs/repository], grpc: {port: null}, metrics: {port: null}}
router: {http: {port: {port}}}
"""


@dataclass(frozen=True)
class Site:
    """The address of a server, and what to ask it for so that its answers are short: the demo model ends no text by
    itself, so its quotes are made likely."""

    url: str
    bias: dict[str, int]

    @property
    def api(self) -> str:
        return f"{self.url}/v1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.clients)
        item.add_marker(pytest.mark.timeout(240))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(config: str, folder: Path) -> Iterator[str]:
    """A cluster with a configuration that has `{port}` and `{root}` in it. Yields its URL."""
    port = free_port()
    path = folder / "cluster.yaml"
    path.write_text(config.replace("{port}", str(port)).replace("{root}", str(ROOT)))
    command = [str(ROOT / ".venv/bin/slipstream"), "serve", str(path)]
    (folder / "run").mkdir()
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run"), "XDG_CACHE_HOME": str(folder / "cache")}
    url = f"http://127.0.0.1:{port}"
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            wait_until_ready(url, process, folder / "log.txt")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(CONFIG, tmp_path_factory.mktemp("cluster")) as url:
        quote = ask(f"{url}/tokenize", {"prompt": '"', "add_special_tokens": False})["tokens"][-1]
        yield Site(url, {str(quote): 100})


@pytest.fixture(scope="session")
def tensor_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the models in configs/repository, without the scheme."""
    with serving(TENSOR_CONFIG, tmp_path_factory.mktemp("tensors")) as url:
        yield url.removeprefix("http://")


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"the cluster did not become ready: {log.read_text()[-1000:]}")


def ask(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())
