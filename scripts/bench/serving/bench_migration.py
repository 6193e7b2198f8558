"""How long does a stream stand still when it moves to another decode worker? With pre-copy and without.

    python scripts/bench/serving/bench_migration.py                         both, prompts of 256 and 2,000 tokens
    python scripts/bench/serving/bench_migration.py --prompt 1000 --moves 40

Two decode workers, each a process of its own with one thread and a random model of 125M parameters
(`scripts/bench/engine/yardstick_models.py`), and the router's service in this process. A few streams run; one after the
other is moved to the other worker and back. A pause is the time between the last token at one worker and the first at
the other; a step time is the median gap of the same stream. `others` are the gaps of streams while another one moved.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.engine.yardstick_models import make_model  # noqa: E402
from slipstream.cluster.tools.bench.load.measures import percentile  # noqa: E402
from slipstream.router.config.router_config import DispatchConfig, MigrationConfig, RouterConfig  # noqa: E402
from slipstream.router.dispatch.service import GenerationService  # noqa: E402
from slipstream.router.protocol.generation import GenerateRequest  # noqa: E402
from slipstream.router.protocol.messages import SamplingParams  # noqa: E402

NEVER = 10**6  # pages: what is shorter is sent while it stands still
WORKERS = ("a", "b")
REST_S = 0.15  # between two moves


@contextmanager
def decode_workers(model: Path, port: int, folder: Path) -> Iterator[None]:
    """Two of them; they are gone afterwards."""
    processes = []
    try:
        for name in WORKERS:
            engine = {"device": "cpu", "kv_cache_mib": 512, "num_threads": 1, "max_num_seqs": 16}
            config = {
                "name": name,
                "role": "decode",
                "model": "m",
                "model_dir": str(model),
                "router_host": "127.0.0.1",
                "router_port": port,
                "token": "secret",
                "engine": engine,
            }
            path = folder / f"{name}.json"
            path.write_text(json.dumps(config))
            command = [sys.executable, "-m", "slipstream.workers.main", "--config", str(path)]
            processes.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Stream:
    """One request, and when its tokens came."""

    def __init__(self, service: GenerationService, number: int, prompt: list[int], num_tokens: int) -> None:
        self.request_id = f"r{number}"
        self.times: list[float] = []
        self._service = service
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        self.task = asyncio.create_task(self._read(GenerateRequest(self.request_id, prompt, sampling)))

    async def _read(self, request: GenerateRequest) -> None:
        async for delta in self._service.submit(request):
            self.times += [time.monotonic()] * len(delta)

    def moved_at(self) -> list[float]:
        """When another worker took it over."""
        record = self._service.history.get(self.request_id)
        assert record is not None
        return [event.time_s for event in record.events if event.moved_to is not None]

    @property
    def step_s(self) -> float:
        return statistics.median(self.gaps(0.0, float("inf")))

    def gaps(self, begin_s: float, end_s: float) -> list[float]:
        """Between tokens, of those that lie within a time."""
        first, last = bisect.bisect_left(self.times, begin_s), bisect.bisect_right(self.times, end_s)
        return [after - before for before, after in itertools.pairwise(self.times[first:last])]

    def pause(self, at_s: float) -> float:
        """The gap that the take-over lies in, or the one after it."""
        at = min(max(bisect.bisect_left(self.times, at_s), 1), len(self.times) - 1)
        return self.times[at] - self.times[at - 1]


async def measure(service: GenerationService, args: argparse.Namespace, prompt: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    ids = itertools.count(seed * 1000)
    num_tokens = args.tokens

    def begin() -> Stream:
        return Stream(service, next(ids), [rng.randrange(10, 30_000) for _ in range(prompt)], num_tokens)

    pauses_s: list[float] = []
    in_steps: list[float] = []
    others_s: list[float] = []
    calm_s: list[float] = []
    while len(pauses_s) < args.moves:
        streams = [begin() for _ in range(args.streams)]
        while not all(len(stream.times) > 8 for stream in streams):
            await asyncio.sleep(0.02)
        calm_from_s = time.monotonic()
        await asyncio.sleep(0.5)  # a stretch without moves, for comparison
        calm_s += [gap for stream in streams for gap in stream.gaps(calm_from_s, time.monotonic())]
        windows: list[tuple[Stream, float, float]] = []
        for stream in itertools.cycle(streams):
            if any(len(one.times) > num_tokens - 40 for one in streams):
                break
            num_before, asked_s = len(stream.moved_at()), time.monotonic()
            service.migrate(stream.request_id)
            while len(stream.moved_at()) == num_before and not stream.task.done():
                await asyncio.sleep(0.002)
            windows.append((stream, asked_s, time.monotonic()))
            await asyncio.sleep(REST_S)
        await asyncio.gather(*(stream.task for stream in streams))
        for stream in streams:
            for at_s in stream.moved_at():
                pauses_s.append(stream.pause(at_s))
                in_steps.append(pauses_s[-1] / stream.step_s)
        for moving, begin_s, end_s in windows:
            for stream in streams:
                if stream is not moving:
                    others_s += stream.gaps(begin_s - 0.02, end_s + 0.02)
    return {
        "moves": len(pauses_s),
        "pause_p50_ms": round(percentile(pauses_s, 0.5) * 1e3, 1),
        "pause_p99_ms": round(percentile(pauses_s, 0.99) * 1e3, 1),
        "pause_p50_steps": round(percentile(in_steps, 0.5), 2),
        "pause_p99_steps": round(percentile(in_steps, 0.99), 2),
        "gap_p50_ms": round(percentile(calm_s, 0.5) * 1e3, 1),
        "gap_p99_ms": round(percentile(calm_s, 0.99) * 1e3, 1),
        "others_p50_ms": round(percentile(others_s, 0.5) * 1e3, 1),
        "others_p99_ms": round(percentile(others_s, 0.99) * 1e3, 1),
    }


async def run(args: argparse.Namespace, precopy_pages: int, model: Path) -> None:
    migration = MigrationConfig(precopy_pages=precopy_pages, rebalance=False)  # only moves that are asked for here
    dispatch = DispatchConfig(migration=migration, local_prefill_max_tokens=NEVER)
    service = GenerationService(RouterConfig(dispatch=dispatch), models={"m": dispatch}, token="secret")
    await service.start()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            decode_workers(model, service.worker_port.address[1], Path(folder)),
        ):
            while len(service.snapshot_of("m").workers) < len(WORKERS):
                await service.worker_port.wait_for_join()
            await measure(service, argparse.Namespace(**{**vars(args), "moves": 2}), 64, 99)  # warms up
            for seed, prompt in enumerate(args.prompt):
                figures = await measure(service, args, prompt, seed)
                how = "pre-copy" if precopy_pages != NEVER else "none"
                print(json.dumps({"copied_before": how, "prompt": prompt, **figures}), flush=True)
            print(json.dumps({"migrations": dict(service.snapshot_of("m").totals.migrations)}), flush=True)
    finally:
        await service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="M-bf16")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "slipstream-yardsticks")
    parser.add_argument("--prompt", type=int, nargs="+", default=[256, 2000], help="tokens")
    parser.add_argument("--precopy", choices=("both", "on", "off"), default="both")
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=300, help="of each stream")
    parser.add_argument("--moves", type=int, default=20, help="at least, of each line")
    args = parser.parse_args()
    model = make_model(args.model, args.models)
    for name, precopy_pages in (("on", MigrationConfig().precopy_pages), ("off", NEVER)):
        if args.precopy in ("both", name):
            asyncio.run(run(args, precopy_pages, model))


if __name__ == "__main__":
    main()
