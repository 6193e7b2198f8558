"""Goodput with `engine.max_step_tokens: auto` and `engine.max_num_seqs: auto` beside constants, in virtual time.

    python -m scripts.bench.engine.bench_step_sizes                     # all workloads, all constants, then auto
    python -m scripts.bench.engine.bench_step_sizes --workload mixed --itl-ms 30 --profile cpu-demo

The engine is the real one; only the model is not there: a step takes what the profile says. A cell is the highest rate
of arrivals at which 90 % of the requests keep both levels (goodput as in DistServe), found by bisection over the same
requests. Arrivals are a Poisson process, lengths are log-normal.

    python -m scripts.bench.engine.bench_step_sizes --real S-f32 --itl-ms 10

The same with a real model on one thread. Its time is the CPU time of this process, so that other programs
matter little. Prompts and answers are a quarter as long. Each workload has one rate, a share of what the engine
can do at best; the figure is the share of the requests that keep both levels. Sizes take turns.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerRoleProfile
from slipstream.cluster.tools.sim.sim_run import find_profile
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, StepTime, TokenChunk, pack_ids
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan
from slipstream.workers.telemetry.step_profile import step_profile
from slipstream.workers.telemetry.step_timer import time_steps
from slipstream.workers.telemetry.step_times import StepSampler

sys.path.insert(0, str(Path(__file__).resolve().parent))

from yardstick_models import make_model

# Mean tokens of prompts and answers, the TTFT level in seconds, and how many requests it takes to fill the engine.
WORKLOADS = {
    "prompt-heavy": (3000, 100, 1.0, 300),
    "output-heavy": (200, 400, 1.0, 1000),
    "mixed": (1200, 250, 1.0, 400),
}
SPREAD = 0.6
STEP_TOKENS = (256, 512, 1024, 2048)
NUM_SEQS = (32, 64, 128, 256)
MAX_MODEL_LEN, PAGE_TOKENS = 16_384, 16
ATTAINED = 0.9
NOISE = 0.05
WARM_UP = 0.2  # share of the requests that are not counted


@dataclass(frozen=True, slots=True)
class Sizes:
    """0: auto."""

    step_tokens: int
    num_seqs: int

    @property
    def is_auto(self) -> bool:
        return not (self.step_tokens and self.num_seqs)

    def __str__(self) -> str:
        return f"{self.step_tokens or 'auto'}/{self.num_seqs or 'auto'}"


@dataclass(frozen=True, slots=True)
class Job:
    """`gap` is the time from the arrival before, at one request a second."""

    gap: float
    num_prompt: int
    num_output: int


@dataclass(frozen=True, slots=True)
class Levels:
    ttft_s: float
    itl_s: float


class NoModel:
    """`Executor` whose tokens are all the same."""

    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        return SampledTokens([0] * len(plan.arrays.sample_rows))


def jobs_of(workload: str, count: int, seed: int, scale: float = 1.0) -> list[Job]:
    rng = random.Random(f"{workload} {seed}")
    num_prompt, num_output = (int(scale * mean) for mean in WORKLOADS[workload][:2])

    def length(mean: int) -> int:
        drawn = rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)
        return max(2, min(int(drawn), MAX_MODEL_LEN // 2 - 1))

    return [Job(rng.expovariate(1.0), length(num_prompt), length(num_output)) for _ in range(count)]


def limits_of(sizes: Sizes, num_pages: int = 1 << 16, vocab_size: int = 8) -> EngineLimits:
    return EngineLimits(
        num_pages=num_pages,
        page_tokens=PAGE_TOKENS,
        max_model_len=min(MAX_MODEL_LEN, num_pages * PAGE_TOKENS),
        max_num_seqs=sizes.num_seqs or max(NUM_SEQS),
        max_step_tokens=sizes.step_tokens or max(STEP_TOKENS),
        max_queued_tokens=1 << 30,
        vocab_size=vocab_size,
        eos_token_ids=(),
        model_id="none",
        prefix_caching=False,
        auto_step_tokens=not sizes.step_tokens,
        auto_num_seqs=not sizes.num_seqs,
    )


class VirtualTime:
    """An engine whose steps take what a profile says."""

    def __init__(self, sizes: Sizes, profile: WorkerRoleProfile) -> None:
        self._profile, self._rng = profile, random.Random(0)
        limits = limits_of(sizes)
        self.engine = NativeEngine(limits, NoModel())
        self.engine.learn_step_times(step_profile(limits, self._profiled_s))

    def step(self) -> tuple[list[TokenChunk], StepTime | None]:
        chunks = self.engine.step()
        step = self.engine.last_step_time(0.0)
        if step is None:
            return chunks, None
        pairs = step.num_prefill_tokens * step.prefill_context_tokens
        of_step = step.num_decoding, step.decode_context_tokens, step.num_prefill_tokens, pairs
        return chunks, replace(step, seconds=self._profile.step_s(*of_step) * self._rng.lognormvariate(0.0, NOISE))

    def _profiled_s(self, num_seqs: int, num_tokens: int, context_tokens: int) -> float:
        if num_tokens > 1:
            return self._profile.step_s(0, 0.0, num_tokens, num_tokens * (context_tokens + num_tokens / 2))
        return self._profile.decode_s(num_seqs, num_seqs * (context_tokens + 1))


class CpuTime:
    """An engine with a model, whose steps take the CPU time that this process needs for them."""

    def __init__(self, sizes: Sizes, runner: ModelRunner, num_pages: int) -> None:
        limits = limits_of(sizes, num_pages, runner.model.config.vocab_size)
        self.engine = NativeEngine(limits, runner)
        self.engine.learn_step_times(time_steps(limits, runner, time.process_time))

    def step(self) -> tuple[list[TokenChunk], StepTime | None]:
        began_s = time.process_time()
        chunks = self.engine.step()
        return chunks, self.engine.last_step_time(time.process_time() - began_s)


@dataclass(slots=True)
class Outcome:
    num_counted: int
    num_missed: int
    ended_s: float

    @property
    def kept(self) -> float:
        return 1 - self.num_missed / self.num_counted


def serve(
    timed: VirtualTime | CpuTime, jobs: Sequence[Job], rate: float, levels: Levels, may_miss: float = math.inf
) -> Outcome:
    """How many of the requests miss a level at `rate` requests a second. Ends early if they are over `may_miss`."""
    engine, sampler = timed.engine, StepSampler()
    engine.follow_level(levels.itl_s)
    arrived: list[float] = []
    now_s = at_s = 0.0
    for job in jobs:
        at_s += job.gap / rate
        arrived.append(at_s)
    first_s, num_next = [0.0] * len(jobs), 0
    num_warm_up = int(WARM_UP * len(jobs))
    num_missed = 0
    while num_next < len(jobs) or engine.has_work:
        if not engine.has_work:
            now_s = max(now_s, arrived[num_next])
        while num_next < len(jobs) and arrived[num_next] <= now_s:
            job = jobs[num_next]
            params = SamplingParams(max_tokens=job.num_output, temperature=0.0, ignore_eos=True)
            engine.add(EngineRequest(str(num_next), 0, pack_ids([1] * job.num_prompt), b"", params))
            num_next += 1
        chunks, step = timed.step()
        if step is None:
            continue
        now_s += step.seconds
        has_prefill = step.num_prefill_tokens > 0
        sampler.ended(has_prefill, step.num_decoding, step.seconds)
        sample = step if sampler.wants(has_prefill, now_s) else None
        if sample is not None:
            sampler.add(sample, now_s)
        engine.step_took(step.seconds, sample)
        for chunk in chunks:
            number = int(chunk.request_id)
            first_s[number] = first_s[number] or now_s
            if chunk.finish_reason is not None and number >= num_warm_up:
                itl_s = (now_s - first_s[number]) / max(jobs[number].num_output - 1, 1)
                num_missed += first_s[number] - arrived[number] > levels.ttft_s or itl_s > levels.itl_s
        if num_missed > may_miss:
            break
    return Outcome(len(jobs) - num_warm_up, num_missed, now_s)


def goodput(sizes: Sizes, profile_name: str, workload: str, itl_ms: float, seeds: Sequence[int]) -> float:
    """Requests a second, the mean over the seeds."""
    role = find_profile(profile_name).decode
    *_, ttft_s, count = WORKLOADS[workload]
    levels = Levels(ttft_s, itl_ms / 1000)
    found = []
    for seed in seeds:
        jobs = jobs_of(workload, count, seed)
        low, high = 0.05, 100.0
        while high / low > 1.01:
            rate = math.sqrt(low * high)
            may_miss = (1 - ATTAINED) * (1 - WARM_UP) * count
            missed = serve(VirtualTime(sizes, role), jobs, rate, levels, may_miss).num_missed
            low, high = (rate, high) if missed <= may_miss else (low, rate)
        found.append(low)
    return sum(found) / len(found)


REAL_SCALE, REAL_REQUESTS, REAL_LOAD, REAL_PAGES = 0.25, 80, 0.7, 4096
REAL_SIZES = (Sizes(128, 256), Sizes(256, 256), Sizes(512, 64), Sizes(512, 256), Sizes(2048, 256), Sizes(0, 0))


def measure_real(model: str, model_dir: Path, workloads: Sequence[str], levels: Levels, rounds: int) -> None:
    config = EngineConfig(num_threads=1, num_pages=REAL_PAGES, prefix_caching=False)
    runner = build_runner(make_model(model, model_dir), config, REAL_PAGES)
    print(
        f"{model}, one thread, CPU time; TTFT {levels.ttft_s:g} s, ITL {1e3 * levels.itl_s:g} ms: share that keeps both"
    )
    print("workload | requests/s | " + " | ".join(map(str, REAL_SIZES)))
    for workload in workloads:
        jobs = jobs_of(workload, REAL_REQUESTS, 0, REAL_SCALE)
        at_once = [replace(job, gap=0.0) for job in jobs]
        best_s = serve(CpuTime(Sizes(512, 256), runner, REAL_PAGES), at_once, 1.0, levels).ended_s
        rate = REAL_LOAD * len(jobs) / best_s
        kept: dict[Sizes, list[float]] = {sizes: [] for sizes in REAL_SIZES}
        for number in range(rounds):
            jobs = jobs_of(workload, REAL_REQUESTS, number, REAL_SCALE)
            for sizes in REAL_SIZES:
                kept[sizes].append(serve(CpuTime(sizes, runner, REAL_PAGES), jobs, rate, levels).kept)
        cells = [f"{statistics.mean(of):.0%} ({min(of):.0%} to {max(of):.0%})" for of in kept.values()]
        print(f"{workload} | {rate:.1f} | " + " | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="h200-llama-8b", help="of configs/profiles, or a file")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="several times; default: all")
    parser.add_argument("--itl-ms", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--step-tokens", type=_numbers, default=STEP_TOKENS, help="constants, as in 256,512")
    parser.add_argument("--num-seqs", type=_numbers, default=NUM_SEQS)
    parser.add_argument("--only-auto", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--real", help="a model of yardstick_models.py, in place of a profile")
    parser.add_argument("--ttft-ms", type=float, default=500.0, help="of --real")
    parser.add_argument("--model-dir", type=Path, default=Path(tempfile.gettempdir()) / "slipstream-yardsticks")
    args = parser.parse_args()
    if args.real:
        levels = Levels(args.ttft_ms / 1000, args.itl_ms / 1000)
        measure_real(args.real, args.model_dir, args.workload or tuple(WORKLOADS), levels, args.seeds)
        return
    grid = [] if args.only_auto else [Sizes(*pair) for pair in product(args.step_tokens, args.num_seqs)]
    autos = [Sizes(0, 0), Sizes(0, max(NUM_SEQS)), Sizes(512, 0)]
    seeds = range(args.seeds)
    with ProcessPoolExecutor(args.processes) as pool:
        for workload in args.workload or WORKLOADS:
            tasks = {
                sizes: pool.submit(goodput, sizes, args.profile, workload, args.itl_ms, seeds)
                for sizes in (*grid, *autos)
            }
            rates = {sizes: task.result() for sizes, task in tasks.items()}
            print(
                f"\n{workload}: requests/s with {ATTAINED:.0%} within TTFT {WORKLOADS[workload][2]:g} s and ITL "
                f"{args.itl_ms:g} ms; {args.profile}"
            )
            if grid:
                print("step tokens | " + " | ".join(f"{num} seqs" for num in args.num_seqs))
                for tokens in args.step_tokens:
                    row = " | ".join(f"{rates[Sizes(tokens, num)]:6.2f}" for num in args.num_seqs)
                    print(f"{tokens:11d} | {row}")
            best = max((rates[sizes] for sizes in grid), default=math.nan)
            for sizes in autos:
                print(f"{sizes!s:>11} | {rates[sizes]:6.2f} | {rates[sizes] / best:.3f} of the best constant")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    main()
