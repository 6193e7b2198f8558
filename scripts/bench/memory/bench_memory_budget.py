"""Two models divide the memory of a host for KV pages: what happens when more pages are wanted than there are?

    python scripts/bench/memory/bench_memory_budget.py                     all loads, divided and in halves
    python scripts/bench/memory/bench_memory_budget.py --demand 1 10 --seconds 20

Two workers, each a process of its own with one thread and the demo model, under two names; the router's service is in
this process. Clients send one request after the other, each with a prompt of its own. `demand` is the pages of all
requests at once over those of the budget: of `one` model, of `both`, or of one `beside` a single client of the other.
`divided`: the budget is shared; `halves`: each worker has a fixed half. `resident` is the memory that the kernel has
given both pools, sampled ten times a second. Tokens per CPU second of the workers say more than tokens per second where
other programs run on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from slipstream.cluster.tools.bench.load.measures import percentile  # noqa: E402
from slipstream.kv_transfer.api.ticket import PeerId  # noqa: E402
from slipstream.router.config.router_config import DispatchConfig, RouterConfig  # noqa: E402
from slipstream.router.dispatch.page_limits import PageLimits  # noqa: E402
from slipstream.router.dispatch.service import GenerationService  # noqa: E402
from slipstream.router.protocol.generation import GenerateRequest, GenerationFinish  # noqa: E402
from slipstream.router.protocol.messages import SamplingParams  # noqa: E402

How = Literal["divided", "halves"]
MODELS = ("chat", "code")
PAGE_TOKENS = 16
PAGE_BYTES = 5 * 4 * 2 * PAGE_TOKENS * 32 * 2  # of the demo model in bf16: layers, KV heads, K and V, head_dim
SAMPLE_S = 0.1
START_TIMEOUT_S = 300.0
POOL_MAPPING = "slipstream-kv-pool"


@contextmanager
def workers(port: int, folder: Path, how: How, budget_pages: int, max_model_len: int) -> Iterator[list[int]]:
    """A decode worker of each model; they are gone afterwards. Gives their process ids."""
    processes = []
    try:
        for model in MODELS:
            engine = {
                "device": "cpu",
                "num_threads": 1,
                "max_num_seqs": 256,
                "page_tokens": PAGE_TOKENS,
                "max_model_len": max_model_len,
            }
            config = {
                "name": f"{model}-0",
                "role": "decode",
                "model": model,
                "model_dir": str(ROOT / "models/slipstream-demo"),
                "router_host": "127.0.0.1",
                "router_port": port,
                "token": "secret",
                "engine": engine if how == "divided" else {**engine, "num_pages": budget_pages // 2},
                "kv_budget_bytes": budget_pages * PAGE_BYTES if how == "divided" else None,
            }
            path = folder / f"{model}.json"
            path.write_text(json.dumps(config))
            command = [sys.executable, "-m", "slipstream.workers.main", "--config", str(path)]
            with (folder / f"{model}.log").open("w") as log:
                processes.append(subprocess.Popen(command, cwd=ROOT, stderr=log))
        yield [process.pid for process in processes]
    finally:
        for process, model in zip(processes, MODELS, strict=True):
            if process.poll() is not None:
                print((folder / f"{model}.log").read_text()[-2000:], file=sys.stderr)
            process.kill()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far, in user and system mode (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """The memory of a worker's pool, as the kernel counts it."""
    num_kib, is_pool = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            is_pool = POOL_MAPPING in line
        elif is_pool and name == "Rss:":
            num_kib += int(values[0])
    return num_kib << 10


def resident_sum(pids: Sequence[int]) -> int:
    """The pools of all workers. They cannot be looked at in the same moment, and memory that moves from a worker to the
    next one between two looks would count twice: so they are looked at in both orders."""
    return min(sum(map(resident_bytes, pids)), sum(map(resident_bytes, reversed(pids))))


@dataclass
class Run:
    """The figures of one load."""

    num_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODELS, 0))
    seconds: list[float] = field(default_factory=list)
    first_s: dict[str, list[float]] = field(default_factory=lambda: {model: [] for model in MODELS})
    num_failed: int = 0
    resident: list[int] = field(default_factory=list)


class Load:
    """Clients of both models."""

    def __init__(self, service: GenerationService, args: argparse.Namespace) -> None:
        self._service = service
        self._args = args
        self._ids = itertools.count()
        self._rng = random.Random(0)

    async def run(self, clients: dict[str, int], seconds: float, pids: Sequence[int]) -> Run:
        run = Run()
        tasks = [
            asyncio.create_task(self._client(model, run)) for model, number in clients.items() for _ in range(number)
        ]
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            run.resident.append(await asyncio.to_thread(resident_sum, pids))
            await asyncio.sleep(SAMPLE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return run

    async def _client(self, model: str, run: Run) -> None:
        while True:
            request_id, began_s = f"r{next(self._ids)}", time.monotonic()
            prompt = [self._rng.randrange(10, 1000) for _ in range(self._args.prompt)]
            sampling = SamplingParams(max_tokens=self._args.tokens, temperature=0.0, ignore_eos=True)
            first_s: float | None = None
            stream = self._service.submit(GenerateRequest(request_id, prompt, sampling, model=model))
            try:
                async for delta in stream:
                    first_s = first_s or time.monotonic() - began_s
                    run.num_tokens[model] += len(delta)
            finally:
                self._service.cancel(request_id)
            finish: GenerationFinish | None = stream.finish
            if finish is None or finish.reason != "length":
                run.num_failed += 1
                print(f"{request_id}: {finish}", file=sys.stderr)
            else:
                run.seconds.append(time.monotonic() - began_s)
                run.first_s[model].append(first_s or 0.0)


def connected(service: GenerationService) -> set[PeerId]:
    """The connections of workers: one that died and came back has another."""
    return {worker.peer for model in MODELS for worker in service.snapshot_of(model).workers}


def num_preemptions(service: GenerationService) -> int:
    stats = [worker.stats for model in MODELS for worker in service.snapshot_of(model).workers]
    return int(sum(dict(one.counters).get("preemptions", 0) for one in stats if one is not None))


async def measure(how: How, args: argparse.Namespace) -> None:
    """All loads with one way to divide the memory."""
    budget_bytes = args.budget_pages * PAGE_BYTES
    dispatch = DispatchConfig(queue_timeout_s=600.0)
    service = GenerationService(RouterConfig(), models=dict.fromkeys(MODELS, dispatch), token="secret")
    await service.start()
    limits = PageLimits(budget_bytes if how == "divided" else None, [service])
    dividing = asyncio.create_task(limits.run())
    of_request = -(-(args.prompt + args.tokens) // PAGE_TOKENS)
    try:
        port = service.worker_port.address[1]
        longest = 2 * (args.prompt + args.tokens)
        with (
            tempfile.TemporaryDirectory() as folder,
            workers(port, Path(folder), how, args.budget_pages, longest) as pids,
        ):
            async with asyncio.timeout(START_TIMEOUT_S):
                while not all(service.snapshot_of(model).workers for model in MODELS):
                    await service.worker_port.wait_for_join()
            first_peers = connected(service)
            load = Load(service, args)
            await load.run(dict.fromkeys(MODELS, 2), 3.0, pids)  # warms up
            for who, demand in itertools.product(args.busy, args.demand):
                number = max(round(demand * args.budget_pages / of_request), 2)
                half = dict.fromkeys(MODELS, number // 2)
                busy = {"one": {"chat": number}, "both": half, "beside": {"chat": number, "code": 1}}[who]
                before, cpu_s = num_preemptions(service), sum(map(cpu_seconds, pids))
                run = await load.run(busy, args.seconds, pids)
                cpu_s = sum(map(cpu_seconds, pids)) - cpu_s
                await asyncio.sleep(1.5)  # for the last statistics, and so that nothing is left of this load
                peers = connected(service)
                row = {
                    "memory": how,
                    "busy": who,
                    "demand": demand,
                    "clients": sum(busy.values()),
                    **{f"{model}_tokens_per_s": round(run.num_tokens[model] / args.seconds) for model in MODELS},
                    "tokens_per_cpu_s": round(sum(run.num_tokens.values()) / cpu_s),
                    "requests": len(run.seconds),
                    "failed": run.num_failed,
                    "workers_lost": len(first_peers - peers),
                    "latency_p50_s": round(percentile(run.seconds, 0.5), 2),
                    "latency_p99_s": round(percentile(run.seconds, 0.99), 2),
                    **{
                        f"{model}_ttft_{name}_s": round(percentile(run.first_s[model], share), 2)
                        for model in MODELS
                        for name, share in (("p50", 0.5), ("p99", 0.99))
                        if run.first_s[model]
                    },
                    "preemptions": num_preemptions(service) - before,
                    "resident_max_mib": round(max(run.resident) / 2**20, 1),
                    "budget_mib": round(budget_bytes / 2**20, 1),
                }
                print(json.dumps(row), flush=True)
    finally:
        dividing.cancel()
        await service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demand", type=float, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--busy", nargs="+", choices=("one", "both", "beside"), default=["one", "both", "beside"])
    parser.add_argument("--how", nargs="+", choices=("divided", "halves"), default=["divided", "halves"])
    parser.add_argument("--budget-pages", type=int, default=144)
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    args = parser.parse_args()
    for how in args.how:
        asyncio.run(measure(how, args))


if __name__ == "__main__":
    main()
