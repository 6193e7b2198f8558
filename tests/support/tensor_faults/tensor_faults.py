"""What can be done to a cluster that serves tensor models: each fault says in a line what it did."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from slipstream.workers.backends.python.launch import SETTINGS_VARIABLE
from tests.support.e2e.serving_cluster import ServingCluster

PROGRAMS = ("backends/python/instance", "backends.hosting.main")
SHARED = "/dev/shm/slipstream-"
HEALS_S = 90.0


class TensorFaults:
    def __init__(self, serving: ServingCluster, rng: random.Random) -> None:
        self._serving = serving
        self._rng = rng
        self.router_kills_s: list[float] = []
        self.kinds: dict[str, Callable[[], Awaitable[str]]] = {
            "instance": self.kill_instance,
            "freeze": self.freeze_instance,
            "host": self.kill_host,
            "router": self.kill_router,
            "both": self.kill_router_and_host,
            "driver": self.kill_driver,
            "worker": self.kill_worker,
        }

    async def strike(self, kind: str) -> str:
        return await self.kinds[kind]()

    async def kill_instance(self) -> str:
        victim = self._instance()
        if victim is None:
            return "no instance to kill"
        name = model_of(victim)
        victim.kill()
        return f"killed {name}"

    async def freeze_instance(self) -> str:
        victim = self._instance()
        if victim is None:
            return "no instance to freeze"
        seconds = self._rng.choice((0.3, 1.0, 3.0))
        with suppress(psutil.NoSuchProcess):
            victim.suspend()
            try:
                await asyncio.sleep(seconds)
            finally:
                victim.resume()
        return f"froze {model_of(victim)} for {seconds} s"

    async def kill_host(self) -> str:
        return await self._kill("instances-0")

    async def kill_router(self) -> str:
        self.router_kills_s.append(time.monotonic())
        return await self._kill("router")

    async def kill_router_and_host(self) -> str:
        pids = self._serving.pids("instances-0")
        said = asyncio.create_task(self.kill_router())
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 0.5)))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(self._serving.wait_until_restarted, "instances-0", pids, HEALS_S)
        return f"{await said} and instances-0"

    async def kill_worker(self) -> str:
        """Of a language model."""
        state = self._serving.state
        assert state is not None
        members = [one for one in state.members if one.role in ("prefill", "decode") and one.state == "ready"]
        return await self._kill(self._rng.choice(members).name) if members else "no worker to kill"

    async def kill_driver(self) -> str:
        """kill -9 of the driver, and of all others with it; the next driver starts them again."""
        state = self._serving.state
        assert state is not None
        os.kill(state.driver, signal.SIGKILL)
        await asyncio.to_thread(self._serving.wait_until_served_by_another, state.driver)
        return "killed the driver"

    async def _kill(self, member: str) -> str:
        pids = self._serving.pids(member)
        if not pids or self._serving.member(member).state != "ready":
            return f"no {member} to kill"
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(self._serving.wait_until_restarted, member, pids, HEALS_S)
        return f"killed {member}"

    def _instance(self) -> psutil.Process | None:
        instances = instances_of(self._serving)
        return self._rng.choice(instances) if instances else None


def addresses(serving: ServingCluster) -> tuple[tuple[str, int], str]:
    """Of HTTP and of gRPC."""
    state = serving.state
    assert state is not None
    at = urlsplit(state.url)
    assert at.hostname is not None
    assert at.port is not None
    return (at.hostname, at.port), state.grpc_url.removeprefix("grpc://")


def instances_of(serving: ServingCluster) -> list[psutil.Process]:
    """The processes of the models."""
    found = []
    for process in serving.processes():
        with suppress(psutil.Error):
            if any(program in part for program in PROGRAMS for part in process.cmdline()):
                found.append(process)
    return found


def model_of(instance: psutil.Process) -> str:
    with suppress(psutil.Error, KeyError, ValueError):
        return f"{json.loads(instance.environ()[SETTINGS_VARIABLE])['name']}, pid {instance.pid}"
    return f"an instance, pid {instance.pid}"


class SharedFiles:
    """The files in /dev/shm that processes of a cluster have mapped, as far as they were seen."""

    def __init__(self, serving: ServingCluster) -> None:
        self._serving = serving
        self.seen: set[str] = set()

    def look(self) -> set[str]:
        """Those that are mapped now."""
        mapped = set()
        for process in self._serving.processes():
            with suppress(OSError):
                for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                    at = line.find(SHARED)
                    if at >= 0:
                        mapped.add(line[at:].removesuffix(" (deleted)"))
        self.seen |= mapped
        return mapped

    def forgotten(self, *, is_over: bool) -> list[str]:
        """Those that are there although no process has them any more."""
        mapped = set() if is_over else self.look()
        return sorted(path for path in self.seen - mapped if Path(path).exists())
