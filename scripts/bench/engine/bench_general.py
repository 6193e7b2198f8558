"""A model by the general path beside the native path and transformers' own cache, on the same weights and CPU.

    python scripts/bench/engine/bench_general.py --models M-bf16,M-f32,gemma-bf16,phi-bf16,moe-bf16

Models have random weights and are made here. All ways of one model are in one process and take turns; figures are the
CPU time of one thread for a step, medians over the rounds, so that other programs on the machine change them little
(ratios are what counts). `prefill` is one prompt in one step, `decode bN` a step of N sequences of 200 tokens.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from transformers import AutoModelForCausalLM, DynamicCache  # noqa: E402
from yardstick_models import make_model  # noqa: E402

from slipstream.workers.config.worker_config import EngineConfig  # noqa: E402
from slipstream.workers.engine.engine_builder import build_runner  # noqa: E402
from slipstream.workers.models.interface.model import GreedyModel  # noqa: E402
from slipstream.workers.models.interface.step_arrays import SequenceSlice  # noqa: E402
from slipstream.workers.models.interface.step_batch import StepBatch  # noqa: E402
from slipstream.workers.models.spec_reader import read_spec  # noqa: E402

PAGE_TOKENS, PAGES_OF_SEQUENCE, NUM_PAGES = 16, 40, 2 * 32 * 40
CONTEXT = 200
CASES = {"prefill 128": (1, 0, 128), "prefill 512": (1, 0, 512)} | {f"decode b{n}": (n, CONTEXT, 1) for n in (1, 8, 32)}
Way = Callable[[int, int, int], Callable[[], object]]


def ours(model_dir: Path, impl: str) -> Way:
    settings: Any = {"num_pages": NUM_PAGES, "num_threads": 1, "model_impl": impl}
    runner = build_runner(model_dir, EngineConfig(**settings), NUM_PAGES, spec=read_spec(model_dir, impl))  # type: ignore[arg-type]
    print(f"{impl}: {type(runner.model).__name__}", flush=True)
    num_groups = len(runner.model.config.kv.page_groups.windows)

    def case(num_seqs: int, start: int, length: int) -> Callable[[], object]:
        used = -(-(start + length) // PAGE_TOKENS)
        slices = []
        for number in range(num_seqs):
            runs = [
                (np.arange(used, dtype=np.int32) + (number * num_groups + group) * PAGES_OF_SEQUENCE).tobytes()
                for group in range(num_groups)
            ]
            tokens = tuple((7 * at + number) % 1000 + 3 for at in range(length))
            slices.append(SequenceSlice(start, tokens, runs[0], True, tuple(runs[1:])))
        batch = StepBatch.build(slices, PAGE_TOKENS)
        model = runner.model
        if isinstance(model, GreedyModel):
            return lambda: model.greedy(batch, runner.kv)
        return lambda: model.scores(batch, runner.kv)

    return case


def own_cache(model_dir: Path) -> Way:
    """transformers' own: its default attention, and a cache that is cut back after each step."""
    model = AutoModelForCausalLM.from_pretrained(model_dir).eval()

    def case(num_seqs: int, start: int, length: int) -> Callable[[], object]:
        cache = DynamicCache(config=model.config)
        tokens = torch.arange(num_seqs * length).view(num_seqs, length) % 1000
        if start:
            with torch.inference_mode():
                model(input_ids=torch.ones(num_seqs, start, dtype=torch.long), past_key_values=cache, logits_to_keep=1)

        def run() -> object:
            with torch.inference_mode():
                own = cache if start else DynamicCache(config=model.config)
                scores = model(input_ids=tokens, past_key_values=own, logits_to_keep=1).logits[:, -1].argmax(-1)
                if start:
                    cache.crop(-length)
                return scores

        return run

    return case


def measure(name: str, model_dir: Path, rounds: int) -> None:
    ways: dict[str, Way] = {}
    if name.partition("-")[0] in ("S", "M"):
        ways["native"] = ours(model_dir, "native")
    ways["general"] = ours(model_dir, "transformers")
    ways["transformers"] = own_cache(model_dir)
    print(f"\n| {name} | {' | '.join(f'{way} ms' for way in ways)} | general / others |\n|---|{'--:|' * len(ways)}---|")
    for title, numbers in CASES.items():
        steps = {way: make(*numbers) for way, make in ways.items()}
        times: dict[str, list[float]] = {way: [] for way in ways}
        repeats = 1 if numbers[2] > 1 else 8
        for round_number in range(rounds + 1):
            for way, step in steps.items():
                begin = time.thread_time()
                for _ in range(repeats):
                    step()
                if round_number:
                    times[way].append((time.thread_time() - begin) / repeats * 1e3)
        medians = {way: statistics.median(values) for way, values in times.items()}
        ratios = ", ".join(
            f"{other / medians['general']:.2f}x {way}" for way, other in medians.items() if way != "general"
        )
        print(f"| {title} | {' | '.join(f'{value:.2f}' for value in medians.values())} | {ratios} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="S-bf16,M-bf16,M-f32,gemma-bf16,phi-bf16,moe-bf16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", type=Path, default=None, help="where models are kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.models.split(","):
            measure(name, make_model(name, args.directory or Path(temporary)), args.rounds)


if __name__ == "__main__":
    main()
