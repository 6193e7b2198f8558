"""Where the time of the native CPU engine's steps goes, by op.

    python scripts/profile_engine.py MODEL_DIR [--threads 2]

Milliseconds a step on the calling thread: decode steps of 1, 8 and 32 sequences with 128 to 250 tokens each, and
prompts of 128, 512 and 1024 tokens, each computed in steps of at most 512. Everything outside the model is `engine`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slipstream.kernels.cpu.interface import OPS
from slipstream.kernels.cpu.library import native_library
from slipstream.router.messages import EngineRequest, SamplingParams, pack_ids
from slipstream.workers.config import EngineConfig
from slipstream.workers.engine.build import build_engine, engine_limits
from slipstream.workers.engine.engine import Engine
from slipstream.workers.engine.runner import ModelRunner
from slipstream.workers.models.config import ModelConfig
from slipstream.workers.models.loader import TORCH_DTYPES
from slipstream.workers.models.native import NativeLlama, load_native
from slipstream.workers.models.pool import kv_shape
from slipstream.workers.models.weight_cache import default_directory

WARM_UP_STEPS, NUM_DECODE_STEPS, NUM_PROMPTS = 5, 100, 5


@dataclass(frozen=True, slots=True)
class Subject:
    engine: Engine
    model: NativeLlama
    vocab_size: int


def load(model_dir: Path, num_threads: int) -> Subject:
    library = native_library()
    if library is None:
        sys.exit("profile_engine: no native kernels here")
    torch.set_num_threads(num_threads)
    library.slipstream_set_num_threads(num_threads)
    config = EngineConfig(max_model_len=2048, kv_cache_mib=1024, prefix_caching=False, num_threads=num_threads)
    limits = engine_limits(model_dir, config)
    model = load_native(
        model_dir,
        library,
        dtype=TORCH_DTYPES[ModelConfig.read(model_dir).dtype],
        page_tokens=config.page_tokens,
        cache_dir=default_directory(),
    )
    limits = replace(limits, num_pages=min(limits.num_pages, 8192))
    kv = torch.zeros(kv_shape(model.config, model.tp, limits.num_pages, config.page_tokens), dtype=model.dtype)
    return Subject(build_engine(limits, ModelRunner(model, kv)), model, limits.vocab_size)


def add(subject: Subject, name: str, isl: int, osl: int) -> None:
    rng = random.Random(name)
    prompt = pack_ids([rng.randrange(3, subject.vocab_size) for _ in range(isl)])
    params = SamplingParams(max_tokens=osl, temperature=0.0, ignore_eos=True)
    subject.engine.add(EngineRequest(name, 0, prompt, b"", params))


def profile(subject: Subject, num_steps: int | None, per: int) -> dict[str, float]:
    """Milliseconds by op, of so many steps or till there is no more work, divided by `per`."""
    subject.model.time_ops(True)
    begin = time.perf_counter()
    done = 0
    while subject.engine.has_work and done != num_steps:
        subject.engine.step()
        done += 1
    wall_s = time.perf_counter() - begin
    times = {op: 1e3 * seconds / per for op, (seconds, _) in subject.model.op_times().items()}
    subject.model.time_ops(False)
    return {**times, "engine": 1e3 * wall_s / per - sum(times.values()), "sum": 1e3 * wall_s / per}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    subject = load(args.model_dir, args.threads)
    columns: dict[str, dict[str, float]] = {}
    for batch in (1, 8, 32):
        for i in range(batch):
            add(subject, f"decode {batch} {i}", 128, 128)
        while subject.engine.stats().num_waiting or subject.engine.capacity().free_tokens < 8192 - batch:
            subject.engine.step()
        for _ in range(WARM_UP_STEPS):
            subject.engine.step()
        columns[f"decode {batch}"] = profile(subject, NUM_DECODE_STEPS, NUM_DECODE_STEPS)
        while subject.engine.has_work:
            subject.engine.step()
    for isl in (128, 512, 1024):
        add(subject, f"warm-up {isl}", isl, 1)
        while subject.engine.has_work:
            subject.engine.step()
        for i in range(NUM_PROMPTS):
            add(subject, f"prefill {isl} {i}", isl, 1)
        columns[f"prefill {isl}"] = profile(subject, None, NUM_PROMPTS)
    print("| ms | " + " | ".join(columns) + " |\n| --- |" + " ---: |" * len(columns))
    for op in (*OPS, "engine", "sum"):
        print(f"| {op} | " + " | ".join(f"{times[op]:.3f}" for times in columns.values()) + " |")


if __name__ == "__main__":
    main()
