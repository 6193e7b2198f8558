"""A real cluster under load while its processes die, freeze and lose their connections; then the account."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.e2e.observation import unrest, wait_until_at_rest
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.faults.campaign_load import Account, Load, learn
from tests.support.faults.cluster_faults import Faults, Memory, can_reset
from tests.support.faults.jobs import Job, make_drawn_jobs, make_jobs
from tests.support.faults.slow_disk import SlowDisk

LEASE_S = 2.0
REQUEST_TIMEOUT_S = 60.0
DEADLINE_S = REQUEST_TIMEOUT_S + 15.0  # a client that waits longer hangs
MIX = ("kill", "kill", "freeze", "freeze", "reset", "reset", "cut-pages")


@dataclass(frozen=True)
class Plan:
    """`faults`: kinds, one of which strikes every `pause_s` seconds or so; none is a soak. `transport`: of pages.
    `drawn`: the load is mostly of several choices with a seed of the router's, long prompts and long answers."""

    seed: int
    seconds: float
    faults: tuple[str, ...] = MIX
    pause_s: tuple[float, float] = (1.5, 6.0)
    num_clients: int = 12
    num_jobs: int = 40
    tp: int = 1
    num_prefill: int = 2
    num_decode: int = 2
    transport: str = "auto"
    corrupt_every: int = 0
    lease_s: float = LEASE_S
    frontends: int = 1
    kv_cache_mib: int = 24
    drawn: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "name": f"faults-{self.seed}",
            "engine": {"dtype": "float32", "device": "cpu", "kv_cache_mib": self.kv_cache_mib, "num_threads": 1},
            "prefill": {"replicas": self.num_prefill, "tp": self.tp},
            "decode": {"replicas": self.num_decode},
            "router": {
                "frontends": self.frontends,
                "dispatch": {
                    "local_prefill_max_tokens": 32,
                    "worker_lease_s": self.lease_s,
                    "max_attempts": 20,
                    "queue_timeout_s": REQUEST_TIMEOUT_S,
                    "request_timeout_s": REQUEST_TIMEOUT_S,
                },
            },
            "kv_transfer": {"transport": self.transport, "lease_s": 6.0, "corrupt_every": self.corrupt_every},
            "restart": {"backoff_s": 0.1},
            "drain_timeout_s": 20,
        }


@dataclass
class Outcome:
    """What a run has shown. `wrong` is empty if nothing was."""

    plan: Plan
    account: Account = field(default_factory=Account)
    struck: list[tuple[float, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    unrest: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)  # of what operators asked for
    retries: dict[str, int] = field(default_factory=dict)
    num_drawn: int = 0  # answers with a seed of the router's that outlived it and were compared
    memory: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def wrong(self) -> list[str]:
        return self.account.wrong + self.unfinished + self.unrest

    def as_json(self) -> dict[str, Any]:
        account = self.account
        return {
            "plan": asdict(self.plan),
            "seconds": self.seconds,
            "num_requests": account.num_requests,
            "ends": dict(account.ends),
            "finished": dict(account.finished),
            "slowest_s": account.slowest_s,
            "retries": self.retries,
            "num_drawn": self.num_drawn,
            "faults": dict(self.kinds),
            "struck": self.struck,
            "memory": self.memory,
            "memory_curves": self.curves,
            "wrong": self.wrong,
        }

    def lines(self) -> list[str]:
        account = self.account
        return [
            f"seed {self.plan.seed}: {account.num_requests} requests in {self.seconds:.0f} s, "
            f"{len(self.struck)} faults {dict(self.kinds)}",
            f"  ends     {dict(account.ends.most_common())}, the slowest after {account.slowest_s:.1f} s",
            f"  finished {dict(sorted(account.finished.items()))}",
            f"  retries  {self.retries}",
            f"  drawn    {self.num_drawn} answers with a seed of the router's outlived it, and were asked for again",
            f"  at rest  {'yes: every page, slot and lease was given back' if not self.unrest else self.unrest}",
            *(f"  memory   {name}: {a} -> {b} MiB, {c:+} MiB/h" for name, (a, b, c) in self.memory.items()),
            *(f"  WRONG    {what}" for what in self.wrong[:20]),
        ]


def run_cluster(plan: Plan, folder: Path) -> Outcome:
    """Starts a cluster, asks everything once, breaks it for a while, and looks at what is left."""
    settings = plan.settings
    disk = None
    if "disk" in plan.faults:
        disk = SlowDisk(folder, f"{tempfile.gettempdir()}/slipstream-")  # this folder, and that of the cluster's Ray
        settings["router"]["access"] = {"usage_file": str(folder / "usage.jsonl")}
    serving = ServingCluster(folder, settings)
    serving.environment |= disk.environment if disk is not None else {}
    with serving:
        return asyncio.run(break_cluster(serving, plan, disk))


async def break_cluster(serving: ServingCluster, plan: Plan, disk: SlowDisk | None = None) -> Outcome:
    rng = random.Random(plan.seed)
    make = make_drawn_jobs if plan.drawn else make_jobs
    jobs = await learn(serving.base_url, make(plan.seed, plan.num_jobs), plan.num_clients)
    outcome = Outcome(plan)
    load = Load(serving.base_url, jobs, rng, plan.num_clients, DEADLINE_S)
    faults = Faults(serving, random.Random(plan.seed + 1), plan.lease_s, disk)
    memory = Memory(serving)
    began_s = time.monotonic()
    striking = asyncio.create_task(_strike(serving, faults, plan, outcome, began_s))
    watching = asyncio.create_task(_watch(memory))
    await asyncio.sleep(plan.seconds)
    striking.cancel()
    await asyncio.gather(striking, return_exceptions=True)
    await load.stop()
    watching.cancel()
    outcome.seconds = time.monotonic() - began_s
    outcome.account = load.account
    if "operate" in plan.faults:
        outcome.unfinished = await faults.operations.unfinished()
    try:
        await asyncio.to_thread(wait_until_at_rest, serving, 60.0)
    except AssertionError:
        outcome.unrest = await asyncio.to_thread(unrest, serving)
    await _ask_again(serving.base_url, jobs, outcome)
    await _ask_with_seeds(serving.base_url, faults.seeds, outcome)
    memory.look()
    outcome.memory, outcome.curves = memory.growth(), memory.series
    await _count_retries(serving, outcome)
    return outcome


async def _count_retries(serving: ServingCluster, outcome: Outcome) -> None:
    """Adds those of the router that runs now."""
    code, body = await asyncio.to_thread(serving.get, "/cluster/status")
    counted = json.loads(body).get("totals", {}).get("retries", {}) if code == 200 else {}
    for cause, number in counted.items():
        outcome.retries[cause] = outcome.retries.get(cause, 0) + number


async def _ask_again(url: str, jobs: Sequence[Job], outcome: Outcome) -> None:
    """After all that the cluster still says what it said at first."""
    again = await learn(url, jobs[:10], 4)
    for before, after in zip(jobs[:10], again, strict=True):
        if (before.texts, before.finishes) != (after.texts, after.finishes):
            outcome.account.wrong.append(f"job {before.number} says other tokens afterwards")


async def _ask_with_seeds(url: str, seeds: dict[int, int], outcome: Outcome) -> None:
    """Answers whose seed a router had drawn before it was killed are what that seed gives."""
    drawn = [answer for answer in outcome.account.drawn if answer.number in seeds]
    given = [seeds[answer.number] for answer in drawn]
    undisturbed = await learn(url, [answer.job.with_seed(seed) for answer, seed in zip(drawn, given, strict=True)], 4)
    outcome.num_drawn = len(drawn)
    for answer, seed, job in zip(drawn, given, undisturbed, strict=True):
        if what := answer.compared(seed, job):
            outcome.account.wrong.append(what)


async def _strike(serving: ServingCluster, faults: Faults, plan: Plan, outcome: Outcome, began_s: float) -> None:
    rng = random.Random(plan.seed + 2)
    kinds = [kind for kind in plan.faults if kind not in ("reset", "cut-pages") or can_reset()]
    while kinds:
        await asyncio.sleep(rng.uniform(*plan.pause_s))
        kind = rng.choice(kinds)
        try:
            if kind in ("router", "driver", "ray"):  # what it has counted goes with it
                await _count_retries(serving, outcome)
            said = await faults.strike(kind)
        except OSError as error:  # the router is away
            said = f"no {kind}: {error}"
        outcome.kinds[kind] += 1
        outcome.struck.append((round(time.monotonic() - began_s, 2), said))


async def _watch(memory: Memory) -> None:
    while True:
        memory.look()
        await asyncio.sleep(5.0)  # memory grows over minutes
