"""A Ray of a cluster's own on this machine: `ray start`, in a session of its own, and nothing of it left afterwards.

Not `ray.init`, although that starts a Ray as well: it takes a fixed port for one of its agents, waits for seconds if
another Ray has it, and its processes would be in the terminal's process group and get the signals that are meant for
the driver. This module imports no Ray, so that Ray can start while the driver imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

from slipstream.cluster import processes
from slipstream.cluster.config import ClusterConfig
from slipstream.cluster.ray_folder import RayFolder
from slipstream.cluster.reaper import Reaper

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
START_TIMEOUT_S = 120.0
START_HOOK = "slipstream.cluster.ray_start_hook.leave_out"
TRIED_VERSIONS = "2.60."  # of Ray, with the hook
LOCAL_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_QUIET_PORT = 15_000  # below are ports that many programs have by custom
NUM_PORT_TRIES = 100


class RayFailed(Exception):  # noqa: N818 - reads as the sentence it carries
    """Ray did not start, or is not where the configuration says."""


def environment() -> dict[str, str]:
    """What the driver and all processes of its Ray must have in theirs. Ray reads part of it when it is imported."""
    return {
        # Nothing leaves the machine, and no question is asked at the terminal.
        "RAY_USAGE_STATS_ENABLED": "0",
        # Whoever can reach a Ray port can run code as this user: ask for a token that only our processes have.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Ray's coming behaviour, taken now, because otherwise it warns of it (FutureWarning).
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # We watch our processes ourselves; without the exporters Ray's agents cost less.
        "RAY_enable_metrics_collection": "0",
        # Nobody asks what became of each Ray task, and keeping it makes the GCS grow by 40 MiB an hour.
        "RAY_task_events_report_interval_ms": "0",
        # Ray runs its workers at nice 15, behind everything else on the machine: no place for a token path.
        "RAY_worker_niceness": "0",
        processes.MARK: secrets.token_hex(16),
    }


class OwnRay:
    """Started by `with`, in the background; `address` waits for it.

    `environment()` must be in `os.environ`. `log_path` gets what Ray says; `state_path` is a file that goes, too, if
    this process is killed. Should Ray die under the cluster, `say` tells the person at the terminal and this process
    ends: nothing can be supervised then, and every call into Ray blocks for a minute, in the main thread.
    """

    def __init__(self, config: ClusterConfig, log_path: Path, state_path: Path, say: Callable[[str], None]) -> None:
        self._log_path = log_path
        self._say = say
        self._is_expected_to_end = threading.Event()
        self._folder = RayFolder()
        self.reaper = Reaper(os.environ[processes.MARK])
        self.reaper.remove(self._folder.path)
        self.reaper.remove(state_path)
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                _command(config, self._folder.path),
                env=start_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def __enter__(self) -> OwnRay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_expected_to_end.set()
        left = [process for process in processes.descendants() if process.pid != self.reaper.pid]
        # By force: it has nothing worth saving, and its way to end in order takes seconds. Its core processes die with
        # it (it has asked the kernel for that), the others are ours to end: its agents would stay for a minute, and the
        # members of the cluster have ended or will not.
        self._process.kill()
        self._process.wait()
        processes.wait_or_kill(left, 0.0)
        self.reaper.close()  # removes the folder
        self._folder.close()

    def address(self) -> str:
        """Blocks until Ray is up. Raises RayFailed."""
        written = self._folder.path / "ray_current_cluster"  # the last thing that `ray start` does
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not written.exists():
            if self._process.poll() is not None:
                raise RayFailed(f"Ray did not start: {self._last_words()}")
            if time.monotonic() > deadline_s:
                raise RayFailed(f"Ray did not start within {START_TIMEOUT_S:g} s")
            time.sleep(0.02)
        self.watch_processes()
        threading.Thread(target=self._watch, name="watch Ray", daemon=True).start()
        return written.read_text().strip()

    def watch_processes(self) -> None:
        """Called when processes have been added: what would have to go if this one were killed."""
        self.reaper.watch(processes.descendants())

    def _watch(self) -> None:
        self._process.wait()  # it ends when one of Ray's core processes does
        if not self._is_expected_to_end.is_set():
            self._say("slipstream: Ray has ended under the cluster (killed?); everything is being stopped")
            os._exit(1)

    def _last_words(self) -> str:
        lines = self._log_path.read_text(errors="replace").split("\n")
        return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "it said nothing")[:300]


def start_environment() -> dict[str, str]:
    """Of `ray start`. Who has set a hook of his own keeps that, and gets all that Ray starts."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    is_tried = version("ray").startswith(TRIED_VERSIONS)
    return {"RAY_START_HOOK": START_HOOK} | environment if is_tried else environment


def _die_with_parent() -> None:
    """Runs in the child before `ray start`: asks the kernel to end it with this process, should the reaper, whose work
    that is, have died as well."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def quiet_port() -> int:
    """A free port that no outgoing connection gets in the seconds until Ray listens there: the kernel picks their ports
    out of `ip_local_port_range`, and Ray dies if it comes too late."""
    first = FIRST_QUIET_PORT
    with contextlib.suppress(OSError):
        first = int(LOCAL_PORT_RANGE.read_text().split()[0])
    for port in random.sample(range(FIRST_QUIET_PORT, first), k=max(0, min(NUM_PORT_TRIES, first - FIRST_QUIET_PORT))):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _command(config: ClusterConfig, folder: Path) -> list[str]:
    # Nobody else reserves any of these: there is room for the cluster to become twice as large.
    num_cpus = config.ray.num_cpus or max(os.cpu_count() or 1, 2 * (int(config.num_cpus) + 1))
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--port=0", "--dashboard-port=0", "--dashboard-agent-listen-port=0", "--node-ip-address=127.0.0.1"),
        # The hook leaves it out. Without the hook it has a fixed port if it is not given another one.
        f"--ray-client-server-port={quiet_port()}",
        *("--include-dashboard=false", "--include-log-monitor=false", "--no-monitor", "--disable-usage-stats"),
        *(f"--num-cpus={num_cpus}", f"--object-store-memory={config.ray.object_store_mib << 20}"),
        f"--temp-dir={folder}",
    ]
    return command if config.ray.num_gpus is None else [*command, f"--num-gpus={config.ray.num_gpus}"]
