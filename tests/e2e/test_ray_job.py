"""The cluster as a job of a Ray cluster that was there before."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import openai
import psutil
import pytest
import yaml

from slipstream.cluster.state import state_file
from slipstream.cluster.state.cluster_state import ClusterState
from tests.e2e.conftest import SMALL
from tests.support.e2e.serving_cluster import DEMO_MODEL, ROOT
from tests.support.e2e.streams import GREEDY, MODEL, prompt_of

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
START_TIMEOUT_S = 90.0


@pytest.fixture
def free_ports() -> Iterator[tuple[int, int]]:
    """Two ports that no other program is given: they stay bound, which keeps no server from listening there."""
    with socket.socket() as one, socket.socket() as other:
        for holder in (one, other):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
        yield one.getsockname()[1], other.getsockname()[1]


@dataclass(frozen=True)
class RayHead:
    """`folder` is the home of its jobs, too."""

    folder: Path
    dashboard: str
    environment: dict[str, str]

    def log_of(self, job: str) -> str:
        """What `ray job logs` would show, which takes seconds of a core."""
        return (self.folder / "session_latest" / "logs" / f"job-driver-{job}.log").read_text(errors="replace")


@pytest.fixture
def ray_head(free_ports: tuple[int, int]) -> Iterator[RayHead]:
    """A Ray with a dashboard, which is what takes jobs; on ports of its own, and gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short: Unix sockets live below it
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "XDG_"))}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "HOME": str(folder),  # where Ray keeps the token that its ports ask for
        "XDG_RUNTIME_DIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_STATE_HOME": str(folder / "state"),
        "RAY_enable_metrics_collection": "0",
    }
    port = free_ports[0]
    command = [
        *(*RAY, "start", "--head", "--block", "--port=0", "--node-ip-address=127.0.0.1", "--disable-usage-stats"),
        *("--include-dashboard=true", f"--dashboard-port={port}", "--dashboard-host=127.0.0.1", "--no-monitor"),
        *("--dashboard-agent-listen-port=0", "--include-log-monitor=false", "--num-cpus=4"),
        *(f"--object-store-memory={80 << 20}", f"--temp-dir={folder}"),
    ]
    with (folder / "head.txt").open("wb") as output:
        head = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for_dashboard(head, port, folder)
        yield RayHead(folder, f"http://127.0.0.1:{port}", environment)
    finally:
        family = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        head.wait()
        psutil.wait_procs(family, timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_dashboard(head: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    """Skips the test where this Ray has no dashboard (it is an extra of its package)."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while head.poll() is None and time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/version", timeout=5):
                return
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 401:  # it is there, and asks for Ray's token
                    return
                raise
        except OSError:
            time.sleep(0.2)
    words = (folder / "head.txt").read_text(errors="replace")
    if "dashboard" in words and ("not installed" in words or "ray[default]" in words):
        pytest.skip("this Ray has no dashboard, which takes the jobs: install ray[default]")
    pytest.fail(f"Ray did not start: {words[-3000:]}")


def ray_job(head: RayHead, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*RAY, "job", arguments[0], f"--address={head.dashboard}", *arguments[1:]]
    return subprocess.run(
        command, cwd=ROOT, env=head.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )


def wait_until_ready(head: RayHead, port: int) -> ClusterState:
    """Returns what the job's driver has written down about its cluster."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        state = state_file.read(head.folder / "slipstream" / "job.json")
        if state is not None and state.phase == "ready":
            assert state.url == f"http://127.0.0.1:{port}"
            return state
        time.sleep(0.2)
    pytest.fail(f"not ready: {head.log_of('serving')}")


def wait_for_log(head: RayHead, words: str) -> None:
    """Returns when the job has said that."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while words not in head.log_of("serving"):
        assert time.monotonic() < deadline_s, head.log_of("serving")
        time.sleep(0.2)


def test_a_submitted_job_serves_and_a_stopped_one_leaves_nothing(
    ray_head: RayHead, free_ports: tuple[int, int], tmp_path: Path
) -> None:
    port = free_ports[1]
    settings = json.loads(json.dumps({**SMALL, "name": "job", "model": {"path": str(DEMO_MODEL)}}))
    settings["router"]["http"]["port"] = port
    config = tmp_path / "job.yaml"
    config.write_text(yaml.safe_dump(settings))
    entrypoint = ["python", "-m", "slipstream.cluster.serve", str(config)]
    submitted = ray_job(
        ray_head, "submit", "--submission-id=serving", "--working-dir=.", "--no-wait", "--", *entrypoint
    )
    assert submitted.returncode == 0, submitted.stderr
    state = wait_until_ready(ray_head, port)
    with openai.OpenAI(base_url=f"{state.url}/v1", api_key="not needed", max_retries=0, timeout=60) as client:
        prompt = prompt_of(100)
        with client.completions.create(model=MODEL, prompt=prompt, max_tokens=20, stream=True, **GREEDY) as stream:
            text = "".join(choice.text for chunk in stream for choice in chunk.choices)
        assert text
        assert text == client.completions.create(model=MODEL, prompt=prompt, max_tokens=20, **GREEDY).choices[0].text
    wait_for_log(ray_head, f"Ready at {state.url}")
    family = [psutil.Process(pid) for member in state.members for pid in member.pids]
    assert len(family) == 3
    family.append(psutil.Process(state.driver))
    stopped = ray_job(ray_head, "stop", "serving")
    assert stopped.returncode == 0, stopped.stderr
    _, alive = psutil.wait_procs(family, 60)
    assert alive == []
    assert state_file.read(ray_head.folder / "slipstream" / "job.json") is None
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{state.url}/health/live", timeout=5)
