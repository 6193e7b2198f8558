"""The Ray that a cluster runs on: one of our own on this machine, or an existing one."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray

from slipstream.cluster import processes
from slipstream.cluster.config import RayConfig
from slipstream.cluster.placement import Resources
from slipstream.cluster.reaper import Reaper

SHUTDOWN_PATIENCE_S = 0.5


class RayFailed(Exception):  # noqa: N818 - reads as the sentence it carries
    """Ray did not start, or is not where the configuration says."""


@dataclass(frozen=True, slots=True)
class RaySession:
    """`reaper` only for a Ray of our own: in another, Ray itself ends the actors of a driver that is gone."""

    node_id: str
    num_nodes: int
    resources: Resources
    reaper: Reaper | None

    def watch_processes(self) -> None:
        """Called when processes have been added: what would have to go if this one were killed."""
        if self.reaper is not None:
            self.reaper.watch(processes.descendants())


class RayWatch:
    """Ends this process, and by its reaper all others of the cluster, when Ray itself dies under it.

    Nothing can be supervised then, and every call into Ray blocks for a minute, in the main thread, signals or not.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_expected = threading.Event()
        core = [process for process in processes.descendants() if process.name() in ("gcs_server", "raylet")]
        threading.Thread(target=self._watch, args=(core,), name="watch Ray", daemon=True).start()

    def expect_end(self) -> None:
        """From now on it is all right."""
        self._is_expected.set()

    def _watch(self, core: list[psutil.Process]) -> None:
        gone: list[psutil.Process] = []
        while not gone and not self._is_expected.is_set():
            gone, _ = psutil.wait_procs(core, timeout=0.5)
        if not self._is_expected.is_set():
            self._say("slipstream: Ray has ended under the cluster (killed?); everything is being stopped")
            os._exit(1)


@contextmanager
def own_ray(config: RayConfig, min_cpus: float, left_behind: Path, say: Callable[[str], None]) -> Iterator[RaySession]:
    """Starts a Ray on this machine, on free ports at the loopback address, and ends all of it afterwards.

    `left_behind` is a file that goes, too, should this process be killed; `say` tells the person at the terminal.
    Must be called in the main thread: Ray's processes ask the kernel to be killed when the thread that started them
    ends. Raises RayFailed.
    """
    cluster_id = os.environ[processes.MARK]
    # Short, because the paths of Unix sockets below it may have 107 bytes at most, and Ray adds 65 of them.
    folder = Path(tempfile.mkdtemp(prefix="slipstream-", dir="/tmp"))
    reaper = Reaper(cluster_id)
    reaper.remove(folder)
    reaper.remove(left_behind)
    watch: RayWatch | None = None
    try:
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                num_cpus=config.num_cpus or max(os.cpu_count() or 1, int(min_cpus) + 1),
                num_gpus=config.num_gpus,
                object_store_memory=config.object_store_mib << 20,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder),
            )
        except (RuntimeError, OSError, ValueError, TimeoutError) as error:
            raise RayFailed(f"Ray did not start: {_first_sentence(error)}") from error
        session = _session(reaper)
        session.watch_processes()
        watch = RayWatch(say)
        yield session
    finally:
        if watch is not None:
            watch.expect_end()
        left = [process for process in processes.descendants() if process.pid != reaper.pid]
        patience_s = 0.0  # of processes that nobody has told to end
        if ray.is_initialized():
            ray.shutdown()
            patience_s = SHUTDOWN_PATIENCE_S
        processes.wait_or_kill(left, patience_s)
        reaper.close()  # removes the folder


@contextmanager
def existing_ray(address: str) -> Iterator[RaySession]:
    """Connects to a running Ray. Raises RayFailed."""
    try:
        # No namespace, no runtime_env: a job that was submitted has its own, and others share our file system.
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise RayFailed(f"no Ray could be reached at {address}: {_first_sentence(error)}") from error
    try:
        yield _session(None)
    finally:
        ray.shutdown()


def _session(reaper: Reaper | None) -> RaySession:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    resources: Resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return RaySession(
        node_id=ray.get_runtime_context().get_node_id(),
        num_nodes=sum(1 for node in nodes if node["Alive"]),
        resources=resources,
        reaper=reaper,
    )


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
