"""What `slipstream check` refuses because of the machine that it runs on."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from slipstream.cluster.commands.checking.start_check import lacks_here, taken_addresses
from slipstream.cluster.config.cluster_config import (
    AdminApiConfig,
    ClusterConfig,
    PoolConfig,
    RayConfig,
    ServedModelConfig,
)
from slipstream.cluster.config.loading.config_warnings import Machine
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.workers.config.worker_config import EngineConfig

MACHINE = Machine(memory_bytes=4096 * 2**20, num_cores=8)
MODEL = ServedModelConfig("models/m")


@pytest.fixture(autouse=True)
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(host_folders, "run_folder", lambda: tmp_path)
    return tmp_path


def refusals(devices: Path, port: int = 0, **changes: Any) -> list[str]:
    router = RouterConfig(http=HttpConfig(port=port))
    config = ClusterConfig(model=MODEL, router=router, **changes)
    return [*taken_addresses(config), *lacks_here(config, MACHINE, devices)]


def decode(replicas: int = 1, **engine: Any) -> PoolConfig:
    return PoolConfig(replicas=replicas, engine=EngineConfig(**engine))


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"decode": decode(kv_cache_mib=4097)}, "decode.engine.kv_cache_mib: must fit into memory, got 4097"),
        ({"decode": decode(device="cuda")}, "decode.engine.device is cuda and Ray has no GPU"),
        ({"decode": decode(replicas=30), "ray": RayConfig(num_cpus=2)}, "the workers need 3.1 CPU"),
        ({"admin_api": AdminApiConfig(host="198.51.100.1")}, "admin_api.host: nothing can listen at 198.51.100.1"),
    ],
)
def test_what_does_not_fit_this_machine_is_refused(changes: dict[str, Any], refusal: str, tmp_path: Path) -> None:
    [sentence] = refusals(tmp_path, **changes)
    assert sentence.startswith(refusal)
    assert refusals(tmp_path, **changes | {"ray": RayConfig(address="ray.example:6379")}) == []


def test_pools_on_a_gpu_are_not_measured_by_the_hosts_memory(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert refusals(tmp_path, decode=decode(kv_cache_mib=4097)) == []
    assert len(refusals(tmp_path, decode=decode(kv_cache_mib=4097, device="cpu"))) == 1
    assert refusals(tmp_path, decode=decode(replicas=0, kv_cache_mib=4097, device="cpu")) == []


def test_a_port_counts_as_free_where_the_cluster_of_that_name_has_it(states: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [sentence] = refusals(tmp_path, port)
        assert sentence.startswith(f"router.http.port: port {port} at 127.0.0.1 is in use by another program")
        started = process_tree.start_time(os.getpid())
        assert started is not None
        state = ClusterState("slipstream", os.getpid(), started, "/c.yaml", "m", "ready", "http://x", "/logs", [])
        state_file.write(states / "slipstream.json", state)
        assert refusals(tmp_path, port) == []


def test_extensions_that_are_not_installed_are_refused_before_anything_starts() -> None:
    router = RouterConfig(http=HttpConfig(port=0), extensions={"json:Nothing": {}, "no_module.x:Y": {}, "none": None})
    assert list(lacks_here(ClusterConfig(model=MODEL, router=router), MACHINE)) == [
        "router.extensions: 'no_module.x:Y' cannot be imported: there is no module 'no_module' on PYTHONPATH",
        "router.extensions: there is no 'none' (none is installed); module:Class names a class directly",
    ]
