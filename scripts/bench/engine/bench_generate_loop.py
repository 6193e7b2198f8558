"""The engine beside a plain loop of transformers' `generate` over the same requests: what continuous batching is worth.

    python scripts/bench/engine/bench_generate_loop.py --models S-f32,M-f32,M-bf16 --requests 32 --rounds 3

    one by one      `generate` for each request after another
    batches of 8    `generate` for eight at a time, padded on the left, until the longest answer of the eight has ended
    engine          all requests at once

All three are in this process, on the same threads and weights, and take turns round by round; figures are output tokens
a second (those that were asked for), medians over the rounds, after one that only warms up. Greedy; end tokens are
ignored. Prompts have 64 to 512 tokens, answers 32 to 128, as in the mixed load of `bench_engine.py`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from adapters import Slipstream
from workload import FIRST_TOKEN_ID, Request, vocab_size
from yardstick_models import make_model

BATCH = 8
PAD_ID = 2


class GenerateLoop:
    """transformers' own generation, `batch` requests at a time."""

    def __init__(self, model_dir: Path, batch: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype="auto").eval()
        self._batch = batch

    @torch.inference_mode()
    def run(self, requests: Sequence[Request]) -> list[list[int]]:
        outputs: list[list[int]] = []
        for at in range(0, len(requests), self._batch):
            some = requests[at : at + self._batch]
            longest = max(len(request.prompt) for request in some)
            prompts = [[PAD_ID] * (longest - len(r.prompt)) + r.prompt for r in some]
            mask = [[0] * (longest - len(r.prompt)) + [1] * len(r.prompt) for r in some]
            num_new = max(request.num_outputs for request in some)
            found = self._model.generate(
                input_ids=torch.tensor(prompts),
                attention_mask=torch.tensor(mask),
                do_sample=False,
                max_new_tokens=num_new,
                min_new_tokens=num_new,
                pad_token_id=PAD_ID,
            )
            outputs += [row[longest : longest + r.num_outputs].tolist() for row, r in zip(found, some, strict=True)]
        return outputs


def mixed(count: int, rng: random.Random, vocab: int) -> list[Request]:
    def prompt() -> list[int]:
        return [rng.randrange(FIRST_TOKEN_ID, vocab) for _ in range(rng.randint(64, 512))]

    return [Request(prompt(), rng.randint(32, 128)) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="S-f32,M-f32,M-bf16", help="of yardstick_models.py")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--model-dir", type=Path, default=Path(tempfile.gettempdir()) / "slipstream-yardsticks")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("model | requests | one by one tok/s | batches of 8 tok/s | engine tok/s | engine / loop | engine / batches")
    for name in args.models.split(","):
        model_dir = make_model(name, args.model_dir)
        engine = Slipstream()
        engine.start(model_dir, args.threads, 1)
        ways: dict[str, Callable[[Sequence[Request]], object]] = {
            "one by one": GenerateLoop(model_dir, 1).run,
            "batches": GenerateLoop(model_dir, BATCH).run,
            "engine": engine.run,
        }
        rates: dict[str, list[float]] = {way: [] for way in ways}
        rng, vocab = random.Random(name), vocab_size(model_dir)
        for way in ways:
            ways[way](mixed(2, random.Random(0), vocab))
        for _ in range(args.rounds):
            requests = mixed(args.requests, rng, vocab)
            num_outputs = sum(request.num_outputs for request in requests)
            for way, run in ways.items():
                began_s = time.perf_counter()
                run(requests)
                rates[way].append(num_outputs / (time.perf_counter() - began_s))
        loop, batches, ours = (statistics.median(rates[way]) for way in ways)
        to_loop = [mine / theirs for mine, theirs in zip(rates["engine"], rates["one by one"], strict=True)]
        to_batches = [mine / theirs for mine, theirs in zip(rates["engine"], rates["batches"], strict=True)]
        print(
            f"{name} | {args.requests} | {loop:.0f} | {batches:.0f} | {ours:.0f} | {_spread(to_loop)} | "
            f"{_spread(to_batches)}",
            flush=True,
        )


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


if __name__ == "__main__":
    main()
