"""A repository whose instances run on hosts of a `Network`, while the router's side runs in this process."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from slipstream.router.process.listening import listening_at
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.workers.instances.host_config import InstanceHostConfig
from tests.support.hosts.host_network import Host, Network
from tests.support.router.repository_lab import TOKEN, RepositoryLab, repository_lab

ROOT = Path(__file__).resolve().parents[3]
NUM_CLIENTS = 8
NO_TLS = LinkTlsConfig()
TENSORS = """input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }"""
WAITS = """
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.005)
        return [response(value_of(requests[0]) + os.getpid())]
"""


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()
    return f"{host}:{port}"


def start_host(host: Host, folder: Path, address: str, tls: LinkTlsConfig = NO_TLS) -> None:
    """An instance host. It has shared memory of its own, as another machine has."""
    config = folder / f"{host.name}.json"
    settings = InstanceHostConfig(address, TOKEN, host.name, logs=str(folder), router_tls=tls)
    config.write_text(json.dumps(asdict(settings)))
    program = f"{sys.executable} -m slipstream.workers.instances.host_main --config {config}"
    command = ["sh", "-c", f"mount -t tmpfs tmpfs /dev/shm && exec {program}"]
    with (folder / f"{host.name}.log").open("wb") as output:
        host.start(command, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)}, output, folder)


@asynccontextmanager
async def tensor_hosts(
    network: Network, folder: Path, num_hosts: int, tls: LinkTlsConfig = NO_TLS
) -> AsyncIterator[RepositoryLab]:
    """The model `m` waits 5 ms for each request and has one instance for each host."""
    with listening_at(network.desk_address, 0, 16)[0] as sock:
        models = {"m": (f"{TENSORS} instance_group {{ kind: KIND_CPU count: {num_hosts} }}", WAITS)}
        hosts = [network.hosts.get(name) or network.add_host(name) for name in ("one", "two")[:num_hosts]]
        for host in hosts:
            start_host(host, folder, address_of(sock), tls)
        try:
            async with repository_lab(folder, models, sockets=[sock], tls=tls, hosts=num_hosts) as lab:
                yield lab
        finally:
            for host in hosts:
                host.kill()


async def requests_per_second(lab: RepositoryLab, seconds: float, num_values: int = 16) -> float:
    """As many clients as keep all instances busy, each with one request at a time."""
    num_answers = 0
    values = range(num_values)

    async def client(until_s: float) -> None:
        nonlocal num_answers
        while time.monotonic() < until_s:
            await lab.infer("m", *values)
            num_answers += 1

    await asyncio.gather(*(client(time.monotonic() + 0.2) for _ in range(NUM_CLIENTS)))
    num_answers, begun_s = 0, time.monotonic()
    await asyncio.gather(*(client(begun_s + seconds) for _ in range(NUM_CLIENTS)))
    return num_answers / (time.monotonic() - begun_s)
