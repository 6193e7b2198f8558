"""A Ray of a cluster's own on this machine: `ray start`, in a session of its own, and nothing of it left afterwards.

`ray.init` would start a Ray as well, but it uses a fixed port for one of its agents, waits for seconds if another Ray
has it, and its processes would be in the terminal's process group and get the signals that are meant for the driver.
This module does not import Ray, so that Ray can start while the driver imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from slipstream.cluster.config.cluster_config import ClusterConfig, RayConfig
from slipstream.cluster.processes import process_tree
from slipstream.cluster.processes.guardian_link import RAY_ENDED
from slipstream.cluster.processes.reaper import Reaper
from slipstream.cluster.ray.ray_folder import RayFolder
from slipstream.router.process.container_limits import num_cores
from slipstream.router.process.module_command import module_command

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
START_TIMEOUT_S = 120.0
START_HOOK = "slipstream.cluster.ray.ray_start_hook.leave_out"
TRIED_VERSIONS = "2.60."  # of Ray, with the hook
LOCAL_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_QUIET_PORT = 15_000  # many programs use ports below this by convention
NUM_PORT_TRIES = 100
CORE_PROCESSES = ("gcs_server", "raylet")
LOOK_EVERY_S = 0.5
MIN_LOG_BYTES = 1 << 20  # free on the disk of the log


class RayFailed(Exception):  # noqa: N818 - reads as the sentence it carries
    """Ray did not start, or is not where the configuration says."""


def environment() -> dict[str, str]:
    """The environment that the driver and all processes of its Ray need. Ray reads part of it when it is imported."""
    return {
        # No usage statistics leave the machine, and no question about them is asked at the terminal.
        "RAY_USAGE_STATS_ENABLED": "0",
        # A client that can reach a Ray port can run code as this user, so require a token that only our processes have.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Ray's future behaviour, chosen now because otherwise it warns about the change (FutureWarning).
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # We watch our processes ourselves; without the exporters Ray's agents cost less.
        "RAY_enable_metrics_collection": "0",
        # Nothing reads the history of Ray tasks, and keeping it makes the GCS grow by 40 MiB an hour.
        "RAY_task_events_report_interval_ms": "0",
        # Ray runs its workers at nice 15, behind everything else on the machine, which would slow down every token.
        "RAY_worker_niceness": "0",
        process_tree.MARK: secrets.token_hex(16),
    }


class LocalRay:
    """A Ray that `with` starts in the background; `address` waits for it.

    `environment()` must be in `os.environ`. `log_path` gets Ray's output. If Ray dies under the cluster, this process
    ends with `RAY_ENDED`: nothing can be supervised any more, and every call into Ray would block the main thread for a
    minute.
    """

    def __init__(self, config: ClusterConfig, log_path: Path) -> None:
        self._log_path = log_path
        self._log_begins = log_path.stat().st_size if log_path.exists() else 0
        self._is_expected_to_end = threading.Event()
        self._folder = RayFolder()
        self.reaper = Reaper(os.environ[process_tree.MARK])
        self.reaper.remove(self._folder.path)
        with self._open_log() as log:
            self._process = subprocess.Popen(
                _command(config, self._folder.path),
                env=start_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def __enter__(self) -> LocalRay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_expected_to_end.set()
        left = [process for process in process_tree.descendants() if process.pid != self.reaper.pid]
        # Ray is killed, because it has nothing worth saving and takes seconds to end normally. Its core processes die
        # with it, as it has asked the kernel for that. The others we have to end ourselves: its agents would stay for a
        # minute, and members of the cluster that have not ended by now will not.
        self._process.kill()
        self._process.wait()
        process_tree.wait_or_kill(left, 0.0)
        self.reaper.close()  # removes the folder
        self._folder.close()

    def address(self) -> str:
        """Blocks until Ray is up. Raises RayFailed."""
        written = self._folder.path / "ray_current_cluster"  # the last thing that `ray start` does
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not (address := _text_of(written)):  # there is a moment in which the file is empty
            if self._process.poll() is not None:
                raise RayFailed(f"Ray did not start: {self._last_words()}")
            if time.monotonic() > deadline_s:
                raise RayFailed(f"Ray did not start within {START_TIMEOUT_S:g} s")
            time.sleep(0.02)
        self.watch_processes()
        threading.Thread(target=self._watch, name="watch Ray", daemon=True).start()
        return address

    def watch_processes(self) -> None:
        """Tells the reaper what to end if this process is killed. To be called when processes have been added."""
        self.reaper.watch(process_tree.descendants())

    def _watch(self) -> None:
        if wait_for_end(self._process, process_tree.descendants(), self._is_expected_to_end):
            os._exit(RAY_ENDED)

    def _open_log(self) -> IO[bytes]:
        """Ray ends when it cannot write, so on a full disk what it says is dropped."""
        is_full = shutil.disk_usage(self._log_path.parent).free < MIN_LOG_BYTES
        return open(os.devnull, "ab") if is_full else self._log_path.open("ab")

    def _last_words(self) -> str:
        """Of this Ray, not of those before."""
        said = self._log_path.read_bytes()[self._log_begins :] if self._log_path.exists() else b""
        lines = said.decode(errors="replace").split("\n")
        return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "it said nothing")[:300]


def wait_for_end(
    ray_start: subprocess.Popen[bytes], below: Iterable[psutil.Process], expected: threading.Event
) -> bool:
    """Returns True as soon as `ray start`, or one of Ray's core processes among those `below` this one, has ended, and
    False when that is to be expected. `ray start` ends with its core processes, but for a raylet that ends in order. So
    it does when one of its agents has died, and all actors with it."""
    core: list[tuple[int, float | None]] = []  # None: it has ended before this looks at it
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() in CORE_PROCESSES:
                core.append((process.pid, process_tree.start_time(process.pid)))
    while not expected.wait(LOOK_EVERY_S):
        has_core = all(started is not None and process_tree.is_running(pid, started) for pid, started in core)
        if ray_start.poll() is not None or not has_core:
            return not expected.is_set()
    return False


def start_environment() -> dict[str, str]:
    """The environment of `ray start`. If the operator has set a hook of their own, that stays, and Ray starts all it
    has."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    is_tried = version("ray").startswith(TRIED_VERSIONS)
    return {"RAY_START_HOOK": START_HOOK} | environment if is_tried else environment


def _text_of(path: Path) -> str:
    """Empty where there is no such file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _die_with_parent() -> None:
    """Runs in the child before `ray start`: asks the kernel to kill it when this process dies. Normally that is the
    reaper's work, but the reaper may have died as well."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def quiet_port() -> int:
    """A free port that no outgoing connection can take in the seconds until Ray listens there, which would kill Ray.
    The kernel picks ports of outgoing connections from `ip_local_port_range`, so this one is outside of that."""
    first = FIRST_QUIET_PORT
    with contextlib.suppress(OSError):
        first = int(LOCAL_PORT_RANGE.read_text().split()[0])
    for port in random.sample(range(FIRST_QUIET_PORT, first), k=max(0, min(NUM_PORT_TRIES, first - FIRST_QUIET_PORT))):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def ray_address(config: RayConfig) -> str | None:
    """The address of the existing Ray to use; None: start one of our own."""
    address = config.address or os.environ.get("RAY_ADDRESS") or None
    return None if address == "local" else address


def offered_cpus(config: ClusterConfig) -> int:
    """The CPUs that this Ray offers. Nothing else reserves any: there is room for the cluster to become twice as
    large."""
    return config.ray.num_cpus or max(num_cores(), 2 * (int(config.num_cpus) + 1))


def _command(config: ClusterConfig, folder: Path) -> list[str]:
    command = [
        *module_command("ray.scripts.scripts", "start", "--head", "--block"),
        *("--port=0", "--dashboard-port=0", "--dashboard-agent-listen-port=0", "--node-ip-address=127.0.0.1"),
        # Any free ports, instead of a range that the Rays of several clusters on one machine would share.
        *("--min-worker-port=0", "--max-worker-port=0"),
        # The hook leaves this server out. Without the hook, it would use a fixed port unless it is given one.
        f"--ray-client-server-port={quiet_port()}",
        *("--include-dashboard=false", "--include-log-monitor=false", "--no-monitor", "--disable-usage-stats"),
        *(f"--num-cpus={offered_cpus(config)}", f"--object-store-memory={config.ray.object_store_mib << 20}"),
        f"--temp-dir={folder}",
    ]
    return command if config.ray.num_gpus is None else [*command, f"--num-gpus={config.ray.num_gpus}"]
