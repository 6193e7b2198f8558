"""A real cluster that serves a repository, under load, while its processes die; then the account."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.e2e.observation import unrest as language_unrest
from tests.support.e2e.serving_cluster import ServingCluster
from tests.support.faults.cluster_faults import Memory
from tests.support.tensor_faults.faulted_graphs import GRAPH_SETTINGS, NUM_GRAPH_INSTANCES, write_graphs
from tests.support.tensor_faults.faulted_models import MODELS, SEQUENCE_MODELS, executions, write_models
from tests.support.tensor_faults.graph_load import GRAPH_KINDS, Undisturbed
from tests.support.tensor_faults.grpc_client import GrpcTensorClient
from tests.support.tensor_faults.http_client import HttpTensorClient
from tests.support.tensor_faults.reloading import Reloading
from tests.support.tensor_faults.step_reloading import StepReloading
from tests.support.tensor_faults.tensor_account import TensorAccount
from tests.support.tensor_faults.tensor_call import Refused
from tests.support.tensor_faults.tensor_faults import SharedFiles, TensorFaults, addresses, instances_of
from tests.support.tensor_faults.tensor_load import KINDS, TensorLoad, scale_call

MIX = ("instance", "instance", "instance", "router", "host", "freeze", "both")
DEADLINE_S = 75.0  # a client that waits longer hangs
RETURN_S = 3.0  # within which gRPC clients of a killed router are served again
GRAPH_MIX = (*MIX, "worker", "worker")
NUM_INSTANCES = sum(2 if "count: 2" in config else 1 for config, _ in MODELS.values())


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """`faults`: kinds, one of which strikes every `pause_s` seconds or so. `num_clients` of each protocol."""

    seed: int
    seconds: float
    faults: tuple[str, ...] = MIX
    pause_s: tuple[float, float] = (1.5, 5.0)
    num_clients: int = 4
    reloads: bool = True
    graphs: bool = False  # ensembles, a language model, ONNX, endpoints and versions

    @property
    def num_instances(self) -> int:
        return NUM_INSTANCES + (NUM_GRAPH_INSTANCES if self.graphs else 0)

    def settings(self, repository: Path) -> dict[str, Any]:
        return {
            "name": f"kills-{self.seed}",
            "repository": {
                "paths": [str(repository)],
                "control_mode": "explicit",
                "load_models": ["*"],
                "grpc": {"port": 0},
                "metrics": {"port": 0},
                **(GRAPH_SETTINGS if self.graphs else {}),
            },
            "restart": {"backoff_s": 0.1},
            "drain_timeout_s": 20,
        }


@dataclass(slots=True)
class TensorOutcome:
    """What a run has shown. `wrong` is empty if nothing was."""

    plan: TensorPlan
    account: TensorAccount = field(default_factory=TensorAccount)
    struck: list[tuple[float, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    returns_s: list[float] = field(default_factory=list)  # from a router's death until gRPC is served again
    num_loads: int = 0
    num_sequences: int = 0
    versions: dict[int, int] = field(default_factory=dict)  # of the split model: requests that each has answered
    unrest: list[str] = field(default_factory=list)
    memory: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def wrong(self) -> list[str]:
        return self.unrest + self.account.wrong

    def lines(self) -> list[str]:
        account = self.account
        slowest = {kind: round(took_s, 1) for kind, took_s in sorted(account.slowest_s.items())}
        return [
            f"seed {self.plan.seed}: {account.num_requests} requests in {self.seconds:.0f} s, "
            f"{len(self.struck)} faults {dict(self.kinds)}, {self.num_loads} loads",
            f"  ends      {dict(sorted(account.ends.items()))}",
            f"  slowest   {slowest}",
            f"  slow      {sorted(account.slow)}",
            f"  gRPC back {[round(one, 1) for one in self.returns_s]} s after the death of a router",
            f"  versions  {self.versions}" if self.versions else "",
            f"  sequences {self.num_sequences} requests executed, none twice" if not self.wrong else "",
            *(f"  error     {count:5} {text}" for text, count in account.errors.most_common(20)),
            *(f"  memory    {name}: {a} -> {b} MiB, {c:+} MiB/h" for name, (a, b, c) in self.memory.items()),
            *(f"  WRONG     {what}" for what in self.wrong[:100]),
        ]


def run_tensor_cluster(plan: TensorPlan, folder: Path) -> TensorOutcome:
    """Starts a cluster, breaks it for a while, and looks at what is left, also when it has ended."""
    repository, journals = folder / "repository", folder / "journals"
    write_models(repository, journals)
    if plan.graphs:
        write_graphs(repository)
    serving = ServingCluster(folder / "cluster", plan.settings(repository))
    outcome = TensorOutcome(plan)
    files = SharedFiles(serving)
    serving.start()
    try:
        asyncio.run(break_cluster(serving, outcome, files, journals))
    finally:
        left = serving.end()
        (folder / "logs.txt").write_text(f"{serving.output}\n{serving.logs}")
    outcome.unrest += [f"a process is left: {what}" for what in left]
    outcome.unrest += [f"a file is left after the end: {path}" for path in files.forgotten(is_over=True)]
    return outcome


async def break_cluster(serving: ServingCluster, outcome: TensorOutcome, files: SharedFiles, journals: Path) -> None:
    plan, (http, grpc) = outcome.plan, addresses(serving)
    rng = random.Random(plan.seed)
    undisturbed = Undisturbed()
    if plan.graphs:
        await undisturbed.learn(HttpTensorClient(*http))
    kinds = (*KINDS, *GRAPH_KINDS) if plan.graphs else KINDS
    load = TensorLoad(http, grpc, rng, plan.num_clients, DEADLINE_S, kinds, undisturbed=undisturbed)
    steps = StepReloading(http, rng, load.account) if plan.reloads and plan.graphs else None
    if steps is not None:
        load.may_fail = steps.has_been_away
    reloading = Reloading(http, rng, load.account) if plan.reloads else None
    faults, memory = TensorFaults(serving, random.Random(plan.seed + 1)), Memory(serving)
    outcome.account = load.account
    began_s = time.monotonic()
    beside = [
        asyncio.create_task(_strike(faults, outcome, files, began_s)),
        asyncio.create_task(_measure_returns(grpc, faults, outcome)),
        asyncio.create_task(_watch(memory)),
    ]
    await asyncio.sleep(plan.seconds)
    for task in beside:
        task.cancel()
    for result in await asyncio.gather(*beside, return_exceptions=True):
        if isinstance(result, Exception):
            outcome.unrest.append(f"the campaign failed: {result!r}")
    if reloading is not None:
        await reloading.stop()
        outcome.num_loads = reloading.num_loads
    if steps is not None:
        await steps.stop()
        outcome.num_loads += steps.num_loads
    await load.stop()
    outcome.versions = load.served_by_version
    outcome.seconds = time.monotonic() - began_s
    await _come_to_rest(serving, outcome, files)
    outcome.memory = memory.growth()
    _count_executions(load, journals, outcome)


async def _strike(faults: TensorFaults, outcome: TensorOutcome, files: SharedFiles, began_s: float) -> None:
    rng = random.Random(outcome.plan.seed + 2)
    while outcome.plan.faults:
        await asyncio.sleep(rng.uniform(*outcome.plan.pause_s))
        await asyncio.to_thread(files.look)
        kind = rng.choice(outcome.plan.faults)
        at_s = round(time.monotonic() - began_s, 2)
        said = await faults.strike(kind)
        outcome.kinds[kind] += 1
        outcome.struck.append((at_s, said))


async def _watch(memory: Memory) -> None:
    while True:
        await asyncio.to_thread(memory.look)
        await asyncio.sleep(5.0)  # memory grows over minutes


async def _measure_returns(grpc: str, faults: TensorFaults, outcome: TensorOutcome) -> None:
    """How long gRPC clients have to wait after each death of a router."""
    client, num_seen = GrpcTensorClient(grpc), 0
    while True:
        await asyncio.sleep(0.02)
        if len(faults.router_kills_s) == num_seen:
            continue
        num_seen = len(faults.router_kills_s)
        died_s = faults.router_kills_s[-1]
        await asyncio.sleep(0.02)  # the kernel closes the connections of the dead
        while True:
            try:
                await client.infer(scale_call(64))
                break
            except Refused:
                await asyncio.sleep(0.02)
        outcome.returns_s.append(time.monotonic() - died_s)


async def _come_to_rest(serving: ServingCluster, outcome: TensorOutcome, files: SharedFiles) -> None:
    deadline_s = time.monotonic() + 40.0
    while True:
        found = await asyncio.to_thread(_unrest, serving, files, outcome.plan)
        if not found or time.monotonic() > deadline_s:
            break
        await asyncio.sleep(0.2)
    outcome.unrest += found


def _unrest(serving: ServingCluster, files: SharedFiles, plan: TensorPlan) -> list[str]:
    """All that is not as in a cluster without work."""
    try:
        code, body = serving.get("/cluster/status")
    except OSError as error:
        return [f"the router does not answer: {error}"]
    if code != 200:
        return [f"the status is {code}: {body[:200]!r}"]
    repository = json.loads(body)["repository"]
    ledger = repository["ledger"]
    in_use = ("num_requests", "num_lent", "num_leases", "leased_bytes")
    found = [f"{ledger[key]} {key}" for key in in_use if ledger[key]]
    found += [f"{model['name']} is {model['state']}" for model in repository["models"] if model["state"] != "READY"]
    num_processes = len(instances_of(serving))
    num_wanted = num_processes - ledger["num_spares"]  # those of the earlier router are kept for a while
    if not ledger["num_launches"] == ledger["num_connected"] == num_wanted == plan.num_instances:
        found.append(f"{num_processes} processes, but {ledger}")
    if plan.graphs:
        found += [what for what in language_unrest(serving) if what != "no instances worker"]  # these do not connect
    return found + [f"a file of the dead is left: {path}" for path in files.forgotten(is_over=False)]


def _count_executions(load: TensorLoad, journals: Path, outcome: TensorOutcome) -> None:
    """No request of a sequence is executed twice, and all of a sequence that was answered, in their order."""
    for model in SEQUENCE_MODELS:
        executed = executions(journals, model)
        outcome.num_sequences += len(executed)
        twice = [one for one, count in Counter(executed).items() if count > 1]
        outcome.unrest += [f"{model} has executed {step} of sequence {number} twice" for number, step in twice]
        steps: dict[int, list[int]] = {}
        for number, step in executed:
            steps.setdefault(number, []).append(step)
        for (of, number), count in load.finished.items():
            if of == model and steps.get(number) != list(range(count)):
                outcome.unrest.append(f"{model} has executed {steps.get(number)} of sequence {number}, of {count}")
