"""What can be done to a running cluster: each fault picks its victim, strikes, and says in a line what it did."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psutil

from tests.support.e2e.observation import status_of
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.faults.drawn_seeds import seeds_under_way
from tests.support.faults.operations import Operations
from tests.support.faults.slow_disk import SlowDisk

RAY_PROCESSES = ("gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


class Faults:
    """`lease_s` is that of workers."""

    def __init__(
        self,
        serving: ServingCluster,
        rng: random.Random,
        lease_s: float,
        disk: SlowDisk | None = None,
    ) -> None:
        self._disk = disk
        self._serving = serving
        self._rng = rng
        self._lease_s = lease_s
        self._frozen: set[int] = set()
        self.operations = Operations(serving, rng)
        self.seeds: dict[int, int] = {}  # by number of the answer, of those that were under way at a router's death
        self.kinds: dict[str, Callable[[], Awaitable[str]]] = {
            "kill": self.kill,
            "freeze": self.freeze,
            "reset": self.reset,
            "cut-pages": self.cut_pages,
            "router": self.kill_router,
            "stop-router": self.stop_router,
            "driver": self.kill_driver,
            "ray": self.kill_ray,
            "operate": self.operations.operate,
            "disk": self.slow_disk,
        }

    async def strike(self, kind: str) -> str:
        return await self.kinds[kind]()

    def _workers(self) -> list[tuple[str, int, int]]:
        """Name, rank and pid of what runs now."""
        state = self._serving.state
        assert state is not None
        found = []
        for member in state.members:
            if member.role != "router" and member.state == "ready":
                found += [
                    (member.name, rank, pid)
                    for rank, pid in enumerate(member.pids)
                    if psutil.pid_exists(pid) and pid not in self._frozen
                ]
        return found

    def _victim(self) -> tuple[str, int, int] | None:
        workers = self._workers()
        return self._rng.choice(workers) if workers else None

    async def kill(self) -> str:
        """kill -9 of a worker, of any rank of it."""
        victim = self._victim()
        if victim is None:
            return "no process to kill"
        os.kill(victim[2], signal.SIGKILL)
        return f"killed {victim[0]} rank {victim[1]}"

    async def freeze(self) -> str:
        """SIGSTOP, for less or for longer than the lease, then SIGCONT."""
        victim = self._victim()
        if victim is None:
            return "no process to freeze"
        name, rank, pid = victim
        seconds = self._lease_s * self._rng.choice((0.3, 1.6, 2.5))
        self._frozen.add(pid)
        try:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        except ProcessLookupError:
            return f"{name} rank {rank} was gone"
        finally:  # also where the campaign ends meanwhile
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._frozen.discard(pid)
        return f"froze {name} rank {rank} for {seconds:.1f} s"

    async def reset(self) -> str:
        """A reset of the connection between a worker and the router, at both ends, whatever is on its way."""
        status = await asyncio.to_thread(status_of, self._serving)
        workers = status["workers"]
        if not workers:
            return "no worker to part from the router"
        worker = self._rng.choice(workers)
        router = self._serving.member("router").pids[0]
        connections = _connections_between(worker["pid"], router)
        if not connections:
            return f"{worker['peer']['name']} has no connection to the router"
        for ports in connections:
            _reset(ports)
        return f"reset the router connection of {worker['peer']['name']}"

    async def cut_pages(self) -> str:
        """A reset of what joins a worker to another one for KV pages: an endpoint error in the middle."""
        workers = self._workers()
        pids = {pid for _, _, pid in workers}
        victims = []
        for name, _, pid in workers:
            for other in pids - {pid}:
                victims += [(name, ports) for ports in _connections_between(pid, other)]
        if not victims:
            return "no page links over TCP"
        name, ports = self._rng.choice(victims)
        _reset(ports)
        return f"cut a page link of {name}"

    async def kill_router(self) -> str:
        """kill -9 of the router; the next one goes on with its clients."""
        router = self._serving.member("router")
        if router.state != "ready" or not router.pids:
            return "no router to kill"
        os.kill(router.pids[0], signal.SIGKILL)
        self.seeds |= seeds_under_way(self._serving.pid)
        await asyncio.to_thread(self._serving.wait_until_restarted, "router", router.pids)
        return "killed the router"

    async def kill_driver(self) -> str:
        """kill -9 of the driver, and of all others with it; the next driver starts them again."""
        state = self._serving.state
        assert state is not None
        os.kill(state.driver, signal.SIGKILL)
        self.seeds |= seeds_under_way(self._serving.pid)
        await asyncio.to_thread(self._serving.wait_until_served_by_another, state.driver)
        return "killed the driver"

    async def kill_ray(self) -> str:
        """kill -9 of one of Ray's own processes, whereupon all others but the guardian end."""
        state = self._serving.state
        assert state is not None
        victim = self._rng.choice([one for one in self._serving.processes() if is_of_ray(one)])
        name = victim.name()
        victim.kill()
        await asyncio.to_thread(self._serving.wait_until_served_by_another, state.driver)
        return f"killed {name}"

    async def stop_router(self) -> str:
        """SIGSTOP, for less or for longer than the lease of workers, then SIGCONT."""
        router = self._serving.member("router")
        if router.state != "ready" or not router.pids:
            return "no router to stop"
        seconds = self._lease_s * self._rng.choice((0.5, 1.6, 4.0))
        try:
            os.kill(router.pids[0], signal.SIGSTOP)
            await asyncio.sleep(seconds)
        except ProcessLookupError:
            return "the router was gone"
        finally:
            with suppress(ProcessLookupError):
                os.kill(router.pids[0], signal.SIGCONT)
        return f"stopped the router for {seconds:.1f} s"

    async def slow_disk(self) -> str:
        """Each write to a file takes a part of the lease, or more than all of it, for a while in which somebody dies
        who has much to write about."""
        assert self._disk is not None
        a_write_s = self._lease_s * self._rng.choice((0.05, 0.5, 1.6))
        self._disk.take(a_write_s)
        try:
            await asyncio.sleep(self._lease_s * self._rng.uniform(0.2, 1.0))
            what = await self.kill() if self._rng.random() < 0.5 else "nothing else"
            await asyncio.sleep(self._lease_s * self._rng.uniform(1.0, 3.0))
        finally:
            self._disk.take(0.0)
        return f"a write to a file took {a_write_s:.1f} s for a while: {what}"


def can_reset() -> bool:
    """Whether sockets of others can be reset here: that takes root and a kernel with INET_DIAG_DESTROY."""
    return os.geteuid() == 0 and shutil.which("ss") is not None


def _connections_between(pid: int, other: int) -> list[tuple[int, int]]:
    """TCP connections of two processes of this host, as the ports of `pid` and of `other`."""
    try:
        mine = psutil.Process(pid).net_connections("tcp")
        theirs = {tuple(c.laddr) for c in psutil.Process(other).net_connections("tcp") if c.raddr}
    except psutil.Error:
        return []
    return [(c.laddr.port, c.raddr.port) for c in mine if c.raddr and tuple(c.raddr) in theirs]


def _reset(ports: tuple[int, int]) -> None:
    """Both ends get a reset, and no other connection that happens to have one of the ports."""
    for here, there in (ports, ports[::-1]):
        command = ["ss", "-K", "-t", "sport", "=", f":{here}", "and", "dport", "=", f":{there}"]
        subprocess.run(command, check=False, capture_output=True)


def is_of_ray(process: psutil.Process) -> bool:
    """Whether Ray cannot go on without it."""
    with suppress(psutil.Error):
        return process.name() in RAY_PROCESSES
    return False


class Memory:
    """Resident memory that each process of the cluster has to itself, over time, in MiB: members as `name/rank`, the
    driver, and what Ray runs beside them; a new process is a new line. Files and shared memory are left out: they are
    the pools' pages, which a process counts as its own once it has looked at them, and of which there is a fixed
    number."""

    def __init__(self, serving: ServingCluster) -> None:
        self._serving = serving
        self._began_s = time.monotonic()
        self.series: dict[str, list[tuple[float, float]]] = {}

    def look(self) -> None:
        now_s = round(time.monotonic() - self._began_s, 1)
        for process, name in self._processes():
            try:
                found = process.memory_info()
            except psutil.Error:
                continue
            if found.rss:  # else it has just died
                own_mib = (found.rss - found.shared) / 2**20
                self.series.setdefault(f"{name} pid {process.pid}", []).append((now_s, round(own_mib, 1)))

    def _processes(self) -> list[tuple[psutil.Process, str]]:
        state = self._serving.state
        assert state is not None
        members = {pid: f"{member.name}/{rank}" for member in state.members for rank, pid in enumerate(member.pids)}
        found = [(psutil.Process(self._serving.pid), "guardian")]
        members[state.driver] = "driver"
        for process in self._serving.processes():
            with suppress(psutil.Error):
                found.append((process, members.get(process.pid) or process.name()))
        return found

    def growth(self) -> dict[str, tuple[float, float, float]]:
        """Of each process: MiB after a third of its time, at the end, and the slope between in MiB an hour."""
        found = {}
        for name, line in self.series.items():
            rest = line[len(line) // 3 :]
            if len(rest) < 3:
                continue
            mean_t = sum(t for t, _ in rest) / len(rest)
            mean_m = sum(m for _, m in rest) / len(rest)
            spread = sum((t - mean_t) ** 2 for t, _ in rest)
            slope = sum((t - mean_t) * (m - mean_m) for t, m in rest) / spread if spread else 0.0
            found[name] = (rest[0][1], rest[-1][1], round(slope * 3600, 1))
        return found
