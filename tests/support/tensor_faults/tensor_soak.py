"""Many requests of each kind, one kind after the other, without faults: are memory and descriptors flat?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.tensor_faults.faulted_models import write_models
from tests.support.tensor_faults.http_client import HttpTensorClient
from tests.support.tensor_faults.reloading import load_call
from tests.support.tensor_faults.tensor_campaign import DEADLINE_S, TensorPlan
from tests.support.tensor_faults.tensor_faults import addresses, instances_of
from tests.support.tensor_faults.tensor_load import TensorLoad

KINDS = ("64 B", "64 KiB", "4 MiB", "batched", "calls", "ensemble", "sequence", "stream", "leave", "leave stream")
COSTLY = {"4 MiB": 10, "sequence": 5, "stream": 5, "leave stream": 5}  # of which there are fewer by this factor
NUM_READINGS = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """Own memory (without what is shared) in MiB, and open descriptors; instances all together."""

    router_mib: float
    instances_mib: float
    router_fds: int
    instances_fds: int
    host_fds: int

    @classmethod
    def of(cls, serving: ServingCluster) -> Reading:
        router = psutil.Process(serving.pids("router")[0])
        host = psutil.Process(serving.pids("instances-0")[0])
        instances = instances_of(serving)
        return cls(
            own_mib(router), round(sum(map(own_mib, instances)), 1), fds(router), sum(map(fds, instances)), fds(host)
        )

    def line(self) -> str:
        return (
            f"router {self.router_mib:6.1f} MiB {self.router_fds:4} fds, instances {self.instances_mib:6.1f} MiB "
            f"{self.instances_fds:4} fds, host {self.host_fds} fds"
        )


@dataclass(slots=True)
class Soak:
    seed: int
    num_requests: int
    num_loads: int
    kinds: tuple[str, ...] = KINDS
    readings: dict[str, list[Reading]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def own_mib(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        found = process.memory_info()
        return round((found.rss - found.shared) / 2**20, 1)
    return 0.0


def fds(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return process.num_fds()
    return 0


def run_soak(soak: Soak, folder: Path, say: Callable[[str], None]) -> None:
    repository, journals = folder / "repository", folder / "journals"
    write_models(repository, journals)
    settings = TensorPlan(soak.seed, 0.0).settings(repository)
    with ServingCluster(folder / "cluster", settings) as serving:
        asyncio.run(_soak(soak, serving, say))
        (folder / "logs.txt").write_text(f"{serving.output}\n{serving.logs}")


async def _soak(soak: Soak, serving: ServingCluster, say: Callable[[str], None]) -> None:
    for what, protocol, kind in _courses(soak):
        soak.readings[what] = []
        if kind:
            await _ask(soak, serving, what, protocol, kind, say)
        else:
            await _load_and_unload(soak, serving, what, say)


def _courses(soak: Soak) -> Iterator[tuple[str, str, str]]:
    """What to say, the protocol and the kind; no kind: loads and unloads."""
    for kind in soak.kinds:
        for protocol in ("http", "grpc"):
            yield f"{protocol} {kind}", protocol, kind
    if soak.num_loads:
        yield "loads and unloads", "http", ""


async def _ask(
    soak: Soak, serving: ServingCluster, what: str, protocol: str, kind: str, say: Callable[[str], None]
) -> None:
    http, grpc = addresses(serving)
    load = TensorLoad(http, grpc, random.Random(soak.seed), 8, DEADLINE_S, (kind,), (protocol,))
    count = soak.num_requests // COSTLY.get(kind, 1)
    for part in range(1, NUM_READINGS + 1):
        while load.account.num_requests < count * part // NUM_READINGS:
            await asyncio.sleep(0.02)
        await _read(soak, serving, what, f"{load.account.num_requests:6}", say)
    await load.stop()
    soak.wrong += load.account.wrong


async def _load_and_unload(soak: Soak, serving: ServingCluster, what: str, say: Callable[[str], None]) -> None:
    client = HttpTensorClient(*addresses(serving)[0])
    for number in range(1, soak.num_loads + 1):
        for value in (None, number):
            status, _, answer = await client.post(*load_call(value))
            if status != 200:
                soak.wrong.append(f"{what} {number}: {status} {answer!r}")
        if number % (soak.num_loads // NUM_READINGS) == 0:
            await _read(soak, serving, what, f"{number:6}", say)
    await client.close()


async def _read(soak: Soak, serving: ServingCluster, what: str, count: str, say: Callable[[str], None]) -> None:
    reading = await asyncio.to_thread(Reading.of, serving)
    soak.readings[what].append(reading)
    say(f"{count} {what:17} {reading.line()}")
