"""Servers of a model repository as processes on this machine: ours, and the real Triton Inference Server."""

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 40.0


@dataclass(slots=True)
class TensorServer:
    """`http` and `grpc` are `HOST:PORT`; `process` is the one that was started, and has the others below it."""

    name: str
    http: str
    grpc: str
    process: subprocess.Popen[bytes]
    seen: dict[str, int] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """Of all its processes, so far."""
        total = 0.0
        for process in (psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def run_before_all_else(self) -> None:
        """Real-time priority for all its threads, on a machine that has other work. Raises PermissionError."""
        for process in (psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)):
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                for thread in process.threads():
                    os.sched_setscheduler(thread.id, os.SCHED_RR, os.sched_param(1))

    def inferences_since_last(self, model: str) -> int:
        """How many requests of a model it has served since the last call."""
        with urllib.request.urlopen(f"http://{self.http}/v2/models/{model}/stats") as answer:
            count = sum(one["inference_stats"]["success"]["count"] for one in json.load(answer)["model_stats"])
        before, self.seen[model] = self.seen.get(model, 0), count
        return max(count - before, 1)


@contextmanager
def slipstream(
    repository: Path, root: Path = ROOT, options: Sequence[str] = (), ports: tuple[int, int, int] | None = None
) -> Iterator[TensorServer]:
    """`slipstream serve` of a checkout. `ports` are those of HTTP, gRPC and metrics (None: free ones). Raises
    RuntimeError if another program has one of them."""
    http, grpc, metrics = ports or (free_port(), free_port(), free_port())
    for port in (http, grpc, metrics):
        if not is_free(port):
            raise RuntimeError(f"port {port} is in use by another program")
    command = [sys.executable, "-m", "slipstream.cluster.cli", "serve", "--name", f"bench-{http}"]
    command += ["--model-repository", str(repository), "--http-port", str(http), "--grpc-port", str(grpc)]
    command += ["--metrics-port", str(metrics), *options]
    yield from served("slipstream" if root == ROOT else f"slipstream in {root.name}", command, http, grpc, root, {})


@contextmanager
def triton(venv: Path, repository: Path, options: Sequence[str] = ()) -> Iterator[TensorServer]:
    """The server in the wheel nvidia-pytriton of a virtual environment. Its Python backend has to find its stub beside
    it, and the libraries of the environment's Python."""
    asked = "import sys, sysconfig; print(sysconfig.get_path('purelib')); print(sysconfig.get_config_var('LIBDIR')); "
    asked += "print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([venv / "bin" / "python", "-c", asked], check=True, capture_output=True, text=True)
    packages, libraries, version = answer.stdout.split()
    server = Path(packages) / "pytriton" / "tritonserver"
    with tempfile.TemporaryDirectory() as folder:
        backends = Path(folder) / "backends"
        (backends / "python").mkdir(parents=True)
        for file in (server / "backends" / "python").iterdir():
            (backends / "python" / file.name).symlink_to(file)
        with suppress(FileExistsError):
            stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
            (backends / "python" / stub.name).symlink_to(stub)
        http, grpc, metrics = free_port(), free_port(), free_port()
        command = [str(server / "bin" / "tritonserver"), "--model-repository", str(repository)]
        command += ["--backend-directory", str(backends), "--http-port", str(http), "--grpc-port", str(grpc)]
        command += ["--metrics-port", str(metrics), *options]
        environment = {
            "LD_LIBRARY_PATH": f"{packages}/nvidia_pytriton.libs:{libraries}",
            "PYTHONPATH": packages,
            "PATH": f"{venv}/bin:{os.environ['PATH']}",
        }
        yield from served("triton", command, http, grpc, ROOT, environment)


def served(
    name: str, command: list[str], http: int, grpc: int, root: Path, environment: dict[str, str]
) -> Iterator[TensorServer]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=os.environ | environment)
        try:
            server = TensorServer(name, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", process)
            wait_ready(server)
            yield server
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(f"{error}: {log.read()[-3000:].decode(errors='replace')}") from None
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_ready(server: TensorServer) -> None:
    """Raises RuntimeError if it ends, or is not ready in time."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise RuntimeError(f"{server.name} ended with {server.process.returncode}")
        with suppress(OSError), urllib.request.urlopen(f"http://{server.http}/v2/health/ready") as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{server.name} is not ready after {START_TIMEOUT_S:.0f} s")


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
