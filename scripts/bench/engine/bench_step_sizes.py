"""Goodput with `engine.max_step_tokens: auto` and `engine.max_num_seqs: auto` beside constants, in virtual time.

    python -m scripts.bench.engine.bench_step_sizes                     # all workloads, all constants, then auto
    python -m scripts.bench.engine.bench_step_sizes --workload mixed --itl-ms 30 --profile cpu-demo

The engine is the real one; only the model is not there: a step takes what the profile says. A cell is the highest rate
of arrivals at which 90 % of the requests keep both levels (goodput as in DistServe), found by bisection over the same
requests. Arrivals are a Poisson process, lengths are log-normal.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product

from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerRoleProfile
from slipstream.cluster.tools.sim.sim_run import find_profile
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, StepTime, pack_ids
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan
from slipstream.workers.telemetry.step_times import StepSampler

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


def jobs_of(workload: str, count: int, seed: int) -> list[Job]:
    rng = random.Random(f"{workload} {seed}")
    num_prompt, num_output, *_ = WORKLOADS[workload]

    def length(mean: int) -> int:
        drawn = rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)
        return max(2, min(int(drawn), MAX_MODEL_LEN // 2 - 1))

    return [Job(rng.expovariate(1.0), length(num_prompt), length(num_output)) for _ in range(count)]


def make_engine(sizes: Sizes, profile: WorkerRoleProfile, itl_s: float) -> NativeEngine:
    limits = EngineLimits(
        num_pages=1 << 16,
        page_tokens=PAGE_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=sizes.num_seqs or max(NUM_SEQS),
        max_step_tokens=sizes.step_tokens or max(STEP_TOKENS),
        max_queued_tokens=1 << 30,
        vocab_size=8,
        eos_token_ids=(),
        model_id="none",
        prefix_caching=False,
        auto_step_tokens=not sizes.step_tokens,
        auto_num_seqs=not sizes.num_seqs,
    )
    engine = NativeEngine(limits, NoModel())
    engine.follow_level(itl_s)
    return engine


def keeps(sizes: Sizes, profile: WorkerRoleProfile, jobs: Sequence[Job], rate: float, levels: Levels) -> bool:
    """Whether enough of the requests keep both levels, at `rate` requests a second."""
    engine, rng, sampler = make_engine(sizes, profile, levels.itl_s), random.Random(0), StepSampler()
    arrived: list[float] = []
    now_s = at_s = 0.0
    for job in jobs:
        at_s += job.gap / rate
        arrived.append(at_s)
    first_s, num_next = [0.0] * len(jobs), 0
    num_warm_up = int(WARM_UP * len(jobs))
    may_miss = int((1 - ATTAINED) * (len(jobs) - num_warm_up))
    while num_next < len(jobs) or engine.has_work:
        if not engine.has_work:
            now_s = max(now_s, arrived[num_next])
        while num_next < len(jobs) and arrived[num_next] <= now_s:
            job = jobs[num_next]
            params = SamplingParams(max_tokens=job.num_output, temperature=0.0, ignore_eos=True)
            engine.add(EngineRequest(str(num_next), 0, pack_ids([1] * job.num_prompt), b"", params))
            num_next += 1
        chunks = engine.step()
        step = engine.last_step_time(0.0)
        if step is None:
            continue
        new, mean, num_decoding, context, _, _ = step_fields(step)
        seconds = profile.step_s(num_decoding, context, new, new * mean) * rng.lognormvariate(0.0, NOISE)
        now_s += seconds
        sampler.ended(new > 0, num_decoding, seconds)
        sample = replace(step, seconds=seconds) if sampler.wants(new > 0, now_s) else None
        if sample is not None:
            sampler.add(sample, now_s)
            told = sampler.due(now_s, is_idle=True)
            sample = told.samples[-1] if told is not None else sample
        engine.step_took(seconds, sample)
        for chunk in chunks:
            number = int(chunk.request_id)
            first_s[number] = first_s[number] or now_s
            if chunk.finish_reason is not None and number >= num_warm_up:
                itl_s = (now_s - first_s[number]) / max(jobs[number].num_output - 1, 1)
                may_miss -= first_s[number] - arrived[number] > levels.ttft_s or itl_s > levels.itl_s
        if may_miss < 0:
            return False
    return True


def step_fields(step: StepTime) -> tuple[int, int, int, int, float, int]:
    return (
        step.num_prefill_tokens,
        step.prefill_context_tokens,
        step.num_decoding,
        step.decode_context_tokens,
        step.seconds,
        step.num_steps,
    )


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
            low, high = (rate, high) if keeps(sizes, role, jobs, rate, levels) else (low, rate)
        found.append(low)
    return sum(found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="h200-llama-8b", help="of configs/profiles, or a file")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="several times; default: all")
    parser.add_argument("--itl-ms", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only-auto", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    grid = [] if args.only_auto else [Sizes(*pair) for pair in product(STEP_TOKENS, NUM_SEQS)]
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
                print("step tokens | " + " | ".join(f"{num} seqs" for num in NUM_SEQS))
                for tokens in STEP_TOKENS:
                    row = " | ".join(f"{rates[Sizes(tokens, num)]:6.2f}" for num in NUM_SEQS)
                    print(f"{tokens:11d} | {row}")
            best = max((rates[sizes] for sizes in grid), default=math.nan)
            for sizes in autos:
                print(f"{sizes!s:>11} | {rates[sizes]:6.2f} | {rates[sizes] / best:.3f} of the best constant")


if __name__ == "__main__":
    main()
