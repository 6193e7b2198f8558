"""Envoy with the project's configuration, whose hosts are replaced by servers of a test."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.support.clients.free_port import free_port

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "envoy" / "envoy.yaml"
Servers = Sequence[tuple[int, int]]  # port, and the port of its health check


@dataclass
class EnvoyProcess:
    port: int
    admin_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def wait_for_healthy(self, cluster: str, count: int) -> None:
        """Returns when so many servers of a cluster get requests."""
        async with aiohttp.ClientSession() as client:
            while True:
                try:
                    async with client.get(f"http://127.0.0.1:{self.admin_port}/clusters?format=json") as answer:
                        found = healthy(await answer.json(), cluster)
                except aiohttp.ClientConnectionError:
                    found = -1
                if found == count:
                    return
                await asyncio.sleep(0.05)


def healthy(status: dict[str, Any], cluster: str) -> int:
    [one] = [one for one in status["cluster_statuses"] if one["name"] == cluster] or [{}]
    failed = ("failed_active_health_check", "pending_active_hc")
    return sum(not any(host["health_status"].get(key) for key in failed) for host in one.get("host_statuses", []))


def program() -> str:
    """Skips the test if there is none."""
    found = shutil.which("envoy", path=f"{Path(sys.executable).parent}") or shutil.which("envoy")
    if found is None:
        pytest.skip("envoy is not installed (pip install -e '.[charts]')")
    return found


def config_of(port: int, admin_port: int, servers: Mapping[str, Servers], num_retries: int | None) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    config["admin"]["address"]["socket_address"]["port_value"] = admin_port
    [listener] = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    if num_retries is not None:
        [chain] = listener["filter_chains"]
        [host] = chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
        host["retry_policy"]["num_retries"] = num_retries
    for cluster in config["static_resources"]["clusters"]:
        cluster["health_checks"][0] |= {"interval": "0.1s", "no_traffic_interval": "0.1s"}
        cluster["load_assignment"]["endpoints"] = [
            {
                "lb_endpoints": [
                    {
                        "endpoint": {
                            "address": {"socket_address": {"address": "127.0.0.1", "port_value": number}},
                            "health_check_config": {"port_value": health},
                        }
                    }
                    for number, health in servers.get(cluster["name"], ())
                ]
            }
        ]
    return config


@asynccontextmanager
async def envoy(
    folder: Path, servers: Mapping[str, Servers], num_retries: int | None = None
) -> AsyncIterator[EnvoyProcess]:
    """Envoy before these servers of each cluster, once it uses them. `num_retries`: other than configured."""
    process = EnvoyProcess(free_port(), free_port())
    path = folder / "envoy.json"
    path.write_text(json.dumps(config_of(process.port, process.admin_port, servers, num_retries)))
    command = [program(), "-c", str(path), "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]
    with (folder / "envoy.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            for cluster, there in servers.items():
                await process.wait_for_healthy(cluster, len(there))
            yield process
        finally:
            if running.returncode is None:
                running.terminate()
            await running.wait()
