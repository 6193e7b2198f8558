from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.processes import process_tree
from slipstream.cluster.ray import local_ray

CONSTRAINTS = Path(__file__).resolve().parents[3] / "constraints.txt"


def test_rays_port_is_none_that_an_outgoing_connection_can_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "range").write_text("32768\t60999\n")
    monkeypatch.setattr(local_ray, "LOCAL_PORT_RANGE", tmp_path / "range")
    ports = {local_ray.quiet_port() for _ in range(20)}
    assert not ports & set(range(32768, 60999 + 1))
    assert len(ports) > 1  # two clusters that start at the same time do not both try the same


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "range").write_text(f"{port + 1}\t60999\n")
        monkeypatch.setattr(local_ray, "LOCAL_PORT_RANGE", tmp_path / "range")
        monkeypatch.setattr(local_ray, "FIRST_QUIET_PORT", port)
        assert local_ray.quiet_port() != port


def test_where_no_such_port_is_left_the_kernel_picks_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(local_ray, "LOCAL_PORT_RANGE", tmp_path / "range")
    assert 1024 <= local_ray.quiet_port() <= 65535


def test_without_the_kernels_range_it_picks_one_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_ray, "LOCAL_PORT_RANGE", tmp_path / "none")
    assert 1024 <= local_ray.quiet_port() <= 65535


def test_what_ray_leaves_out_has_been_tried_with_the_version_that_is_pinned() -> None:
    pinned = re.search(r"^ray==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1].startswith(local_ray.TRIED_VERSIONS)


@pytest.mark.parametrize(("version", "is_asked_for"), [("2.60.0", True), ("2.60.3", True), ("2.61.0", False)])
def test_other_versions_of_ray_start_all_that_they_have(
    monkeypatch: pytest.MonkeyPatch, version: str, is_asked_for: bool
) -> None:
    monkeypatch.delenv("RAY_START_HOOK", raising=False)
    monkeypatch.setattr(local_ray, "version", lambda _: version)
    assert (local_ray.start_environment().get("RAY_START_HOOK") == local_ray.START_HOOK) == is_asked_for


def test_a_hook_of_ones_own_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_START_HOOK", "mine.hook")
    assert local_ray.start_environment()["RAY_START_HOOK"] == "mine.hook"


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Processes with the names of Ray's."""
    started = {}
    for name in ("ray", "raylet", "agent"):
        (tmp_path / name).symlink_to(shutil.which("sleep") or "sleep")
        started[name] = subprocess.Popen([tmp_path / name, "60"])
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("victim", ["ray", "raylet"])
def test_the_end_of_ray_start_or_of_a_core_process_is_noticed(
    sleepers: dict[str, subprocess.Popen[bytes]], victim: str
) -> None:
    below = [psutil.Process(process.pid) for process in sleepers.values()]
    sleepers["agent"].kill()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(local_ray.wait_for_end, sleepers["ray"], below, threading.Event())
        sleepers[victim].kill()
        assert ended.result(10.0)


def test_a_core_process_that_has_ended_before_it_is_watched_is_noticed(
    sleepers: dict[str, subprocess.Popen[bytes]],
) -> None:
    below = [psutil.Process(process.pid) for process in sleepers.values()]
    sleepers["raylet"].kill()
    os.waitid(os.P_PID, sleepers["raylet"].pid, os.WEXITED | os.WNOWAIT)  # ended, and not collected
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(local_ray.wait_for_end, sleepers["ray"], below, threading.Event()).result(10.0)


def test_an_end_that_is_expected_is_not_told(sleepers: dict[str, subprocess.Popen[bytes]]) -> None:
    expected = threading.Event()
    expected.set()
    assert not local_ray.wait_for_end(sleepers["ray"], [], expected)


@pytest.mark.parametrize(
    ("program", "has_space", "sentence"),
    [
        ("echo one; echo two", True, "Ray did not start: two"),
        ("true", True, "Ray did not start: it said nothing"),
        ("echo one", False, "Ray did not start: it said nothing"),
    ],
)
def test_a_start_that_fails_is_told_by_its_own_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, has_space: bool, sentence: str
) -> None:
    log = tmp_path / "ray.log"
    log.write_text("the words of an earlier Ray\n")
    monkeypatch.setenv(process_tree.MARK, "a-test-of-ray")
    monkeypatch.setattr(local_ray, "_command", lambda config, folder: ["sh", "-c", program])
    monkeypatch.setattr(process_tree, "descendants", list)  # what else runs below this process is no Ray's
    if not has_space:
        usage = shutil.disk_usage(tmp_path)._replace(free=0)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with (
        local_ray.LocalRay(ClusterConfig(model="m"), log) as ray,
        pytest.raises(local_ray.RayFailed, match=f"^{sentence}$"),
    ):
        ray.address()
    assert has_space or log.read_text() == "the words of an earlier Ray\n"


def test_the_address_is_awaited_where_its_file_is_still_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[Path] = []

    def command(config: ClusterConfig, folder: Path) -> list[str]:
        written.append(folder / "ray_current_cluster")
        written[0].touch()
        return ["sleep", "60"]

    monkeypatch.setenv(process_tree.MARK, "a-test-of-ray")
    monkeypatch.setattr(local_ray, "_command", command)
    monkeypatch.setattr(process_tree, "descendants", list)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: written[0].write_text("127.0.0.1:6379"))
    monkeypatch.setattr(local_ray, "time", clock)
    with local_ray.LocalRay(ClusterConfig(model="m"), tmp_path / "ray.log") as ray:
        assert ray.address() == "127.0.0.1:6379"
