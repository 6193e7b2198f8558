"""Where the time of the CPU engine's steps goes, by op: torch's forms (before) and the native kernels (after).

    python scripts/bench/engine/profile_engine.py [--models S-bf16,M-bf16] [--forms torch,native]

Milliseconds a step on the calling thread: decode steps of 1, 8 and 32 sequences with 128 to 250 tokens each, and
prompts of 128, 512 and 1024 tokens, each computed in steps of at most 512; the median of some repeats. Norms, rotary
angles and so on are ops of their own in both forms. What is outside the model's ops (scheduler, step arrays, sampling
where the model does not do it) is `engine`. The models have random weights and are made here.

A run of one form of one model takes under a minute; `--json FILE` keeps what it found there, and a later run with the
same file shows all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench" / "engine")]

from timed_ops import OPS, time_ops  # noqa: E402
from yardstick_models import make_model  # noqa: E402

from slipstream.kernels.cpu.native_library import native_library  # noqa: E402
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, pack_ids  # noqa: E402
from slipstream.workers.config.worker_config import EngineConfig  # noqa: E402
from slipstream.workers.engine.engine_builder import build_engine, engine_limits  # noqa: E402
from slipstream.workers.engine.execution.model_runner import ModelRunner  # noqa: E402
from slipstream.workers.engine.native_engine import NativeEngine  # noqa: E402
from slipstream.workers.models.directory.model_config import ModelConfig  # noqa: E402
from slipstream.workers.models.interface.kv_shape import kv_shape  # noqa: E402
from slipstream.workers.models.model_loader import TORCH_DTYPES, load_model  # noqa: E402
from slipstream.workers.models.native_model import load_native  # noqa: E402
from slipstream.workers.models.weights.weight_cache import default_directory  # noqa: E402

FORMS = ("torch", "native")
BATCHES, PROMPTS = (1, 8, 32), (128, 512, 1024)
CASES = (*(f"decode {n}" for n in BATCHES), *(f"prefill {n}" for n in PROMPTS))
ISL, OSL = 128, 128
WARM_UP_STEPS, STEPS_OF_REPEAT, NUM_REPEATS = 5, 20, 5

Times = dict[str, float]  # milliseconds by op, "engine" and "step" among them


@dataclass(frozen=True, slots=True)
class Subject:
    engine: NativeEngine
    seconds: Callable[[], dict[str, float]]  # by op, since some moment
    vocab_size: int

    def add(self, name: str, isl: int, osl: int) -> None:
        rng = random.Random(name)
        prompt = pack_ids([rng.randrange(3, self.vocab_size) for _ in range(isl)])
        params = SamplingParams(max_tokens=osl, temperature=0.0, ignore_eos=True)
        self.engine.add(EngineRequest(name, 0, prompt, b"", params))

    def finish(self) -> None:
        while self.engine.has_work:
            self.engine.step()

    def timed(self, run: Callable[[], None], num_steps: int) -> Times:
        """Of one of the `num_steps` steps that `run` makes."""
        before, begin = self.seconds(), time.perf_counter()
        run()
        wall_ms, after = 1e3 * (time.perf_counter() - begin) / num_steps, self.seconds()
        ops = {op: 1e3 * (after.get(op, 0.0) - before.get(op, 0.0)) / num_steps for op in OPS.values()}
        return {**ops, "engine": wall_ms - sum(ops.values()), "step": wall_ms}


def load(model_dir: Path, form: str, num_threads: int) -> Subject:
    torch.set_num_threads(num_threads)
    config = EngineConfig(max_model_len=2048, kv_cache_mib=512, prefix_caching=False, num_threads=num_threads)
    limits = replace(engine_limits(model_dir, config), max_queued_tokens=2**20)
    dtype = TORCH_DTYPES[ModelConfig.read(model_dir).dtype]
    if form == "torch":
        torch_model = load_model(model_dir, dtype=dtype)
        clock = time_ops(torch_model)
        kv = torch.zeros(
            kv_shape(torch_model.config, torch_model.tp, limits.num_pages, config.page_tokens), dtype=dtype
        )
        return Subject(
            build_engine(limits, ModelRunner(torch_model, kv)), lambda: dict(clock.seconds), limits.vocab_size
        )
    library = native_library()
    if library is None:
        sys.exit("profile_engine: no native kernels here")
    library.slipstream_set_num_threads(num_threads)
    model = load_native(model_dir, library, dtype=dtype, page_tokens=config.page_tokens, cache_dir=default_directory())
    kv = torch.zeros(kv_shape(model.config, model.tp, limits.num_pages, config.page_tokens), dtype=dtype)
    engine = build_engine(limits, ModelRunner(model, kv))
    model.time_ops(True)
    return Subject(engine, lambda: {OPS[op]: s for op, s in model.op_times().items()}, limits.vocab_size)


def decode_profile(subject: Subject, batch: int) -> list[Times]:
    for i in range(batch):
        subject.add(f"decode {batch} {i}", ISL, OSL)
    while subject.engine.stats().num_waiting or subject.engine.capacity().free_tokens < 2**20 - batch:
        subject.engine.step()
    engine = subject.engine

    def run() -> None:
        for _ in range(STEPS_OF_REPEAT):
            engine.step()

    for _ in range(WARM_UP_STEPS):
        engine.step()
    found = [subject.timed(run, STEPS_OF_REPEAT) for _ in range(NUM_REPEATS)]
    subject.finish()
    return found


def prefill_profile(subject: Subject, isl: int) -> list[Times]:
    found = []
    for repeat in range(NUM_REPEATS + 1):
        subject.add(f"prefill {isl} {repeat}", isl, 1)
        found.append(subject.timed(subject.finish, 1))
    return found[1:]


def profile(model_dir: Path, form: str, num_threads: int) -> dict[str, Times]:
    """The median repeat of each case."""
    subject = load(model_dir, form, num_threads)
    repeats = [
        *(decode_profile(subject, batch) for batch in BATCHES),
        *(prefill_profile(subject, isl) for isl in PROMPTS),
    ]
    return {case: _median(found) for case, found in zip(CASES, repeats, strict=True)}


def _median(found: list[Times]) -> Times:
    middle = statistics.median_low(times["step"] for times in found)
    return next(times for times in found if times["step"] == middle)


def table(model: str, found: dict[str, dict[str, Times]]) -> str:
    """Every case has a column for each form."""
    forms = [form for form in FORMS if form in found]
    lines = [
        [f"{model}, ms", *(f"{case}, {form}" for case in CASES for form in forms)],
        ["---", *["---:"] * len(CASES) * len(forms)],
        *(
            [op, *(f"{found[form][case][op]:.3f}" for case in CASES for form in forms)]
            for op in (*OPS.values(), "engine", "step")
        ),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="S-bf16,M-bf16", help="S-bf16, M-bf16, S-f32, M-f32")
    parser.add_argument("--models-dir", type=Path, default=ROOT / "build" / "yardstick_models")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="results of this run and those before it")
    args = parser.parse_args()
    found: dict[str, dict[str, dict[str, Times]]] = {}
    if args.json and args.json.exists():
        found = json.loads(args.json.read_text())
    for model in args.models.split(","):
        model_dir = make_model(model, args.models_dir)
        for form in args.forms.split(","):
            found.setdefault(model, {})[form] = profile(model_dir, form, args.threads)
    if args.json:
        args.json.write_text(json.dumps(found))
    for model, forms in found.items():
        print(table(model, forms), end="\n\n")


if __name__ == "__main__":
    main()
