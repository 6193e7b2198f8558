"""What a decode step costs besides the model: the engine with a model that computes nothing.

    python scripts/bench/engine/bench_engine_overhead.py [--profile BATCH]

Scheduler, step arrays, sampling and bookkeeping, in microseconds a step and a sequence; medians over steps.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from slipstream.router.protocol.messages import EngineRequest, SamplingParams, pack_ids
from slipstream.workers.engine.execution.model_runner import ModelRunner
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.rope_config import Rope
from slipstream.workers.models.interface.model import GreedyTokens
from slipstream.workers.models.interface.step_batch import StepBatch

PAGE_TOKENS = 16
ISL, OSL = 128, 512
VOCAB_SIZE = 8192
NUM_PAGES = 64 * (ISL + OSL) // PAGE_TOKENS + 64


class NullModel:
    """Gives every row the same scores."""

    dtype = torch.float32

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._logits = 3 * torch.randn(64, VOCAB_SIZE)  # as peaked as a language model's

    def scores(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor | None:
        return self._logits[: len(batch.arrays.sample_rows)].clone()


class NullGreedyModel(NullModel):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._token_ids, self._is_sound = np.full(64, 7, np.int32), np.ones(64, np.bool_)

    def greedy(
        self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None
    ) -> GreedyTokens | None:
        n = len(batch.arrays.sample_rows)
        return GreedyTokens(self._token_ids[:n], self._is_sound[:n])


def engine_of(model: NullModel, temperature: float, num_seqs: int) -> NativeEngine:
    """With `num_seqs` sequences that decode."""
    limits = EngineLimits(
        num_pages=NUM_PAGES,
        page_tokens=PAGE_TOKENS,
        max_model_len=2048,
        max_num_seqs=64,
        max_step_tokens=512,
        max_queued_tokens=64 * ISL,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(1,),
        model_id="null",
    )
    kv = torch.zeros(1, NUM_PAGES, 1, 2, PAGE_TOKENS, 1)
    engine = NativeEngine(limits, ModelRunner(model, kv))
    rng = np.random.default_rng(0)
    for i in range(num_seqs):
        prompt = pack_ids(rng.integers(3, VOCAB_SIZE, ISL).tolist())
        params = SamplingParams(max_tokens=OSL, temperature=temperature, top_p=0.9)
        engine.add(EngineRequest(f"request-{i}", 0, prompt, b"", params))
    while engine.stats().total_sampled_tokens < 2 * num_seqs:
        engine.step()
    return engine


def step_us(engine: NativeEngine, num_steps: int) -> float:
    times_s = []
    for _ in range(num_steps):
        begin = time.perf_counter()
        outputs = engine.step()
        times_s.append(time.perf_counter() - begin)
        assert outputs
    return 1e6 * statistics.median(times_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=int, help="a profile of greedy steps at this batch instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = ModelConfig(
        family="llama",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        rms_norm_eps=1e-5,
        rope=Rope(1e4),
        max_position_embeddings=2048,
        layer_windows=(None,),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tie_word_embeddings=False,
        dtype="float32",
    )
    if args.profile:
        engine = engine_of(NullGreedyModel(config), 0.0, args.profile)
        with cProfile.Profile() as profile:
            step_us(engine, 300)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    print("| batch | picked by the model, us | a sequence | argmax here, us | drawn (top_p), us |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for num_seqs in (1, 8, 32, 64):
        picked = step_us(engine_of(NullGreedyModel(config), 0.0, num_seqs), 300)
        greedy = step_us(engine_of(NullModel(config), 0.0, num_seqs), 300)
        drawn = step_us(engine_of(NullModel(config), 0.8, num_seqs), 100)
        print(f"| {num_seqs} | {picked:.0f} | {picked / num_seqs:.1f} | {greedy:.0f} | {drawn:.0f} |")


if __name__ == "__main__":
    main()
