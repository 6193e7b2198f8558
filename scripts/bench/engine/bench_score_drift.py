"""How often an answer that is resumed elsewhere would draw another token, because scores are rounded differently.

    python scripts/bench/engine/bench_score_drift.py [--dtype float32|bfloat16] [--kernels auto|off] [--answers 4]

Answers of the demo model are generated token by token, each alone. Then their beginnings are computed as prompts, as
after the death of a router or a worker, and the scores of the next token are compared. Where they differ, the share of
all draws that would give another token follows from both distributions; `apart` is the least share that any way of
drawing could reach (the total variation distance). `--kernels off`: torch's forms instead of the native kernels.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.cpu.native_library import native_library
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, TokenLogprob, pack_ids
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.native_engine import NativeEngine

DEMO = Path(__file__).resolve().parents[3] / "models" / "slipstream-demo"
NUM_TOKENS = 160
RESUMED_EVERY = 9
TEMPERATURE = 0.9


def request(prompt: list[int], known: list[int], num_tokens: int, seed: int, vocab_size: int) -> EngineRequest:
    """A request for the log-probabilities of the whole vocabulary."""
    params = SamplingParams(
        max_tokens=num_tokens, temperature=TEMPERATURE, seed=seed, ignore_eos=True, logprobs=vocab_size
    )
    return EngineRequest("answer", 0, pack_ids(prompt), pack_ids(known), params)


def generated(engine: NativeEngine, asked: EngineRequest) -> tuple[list[int], list[NDArray[np.float64]]]:
    """Tokens, and the distribution [vocab] that each was drawn from."""
    engine.add(asked)
    tokens: list[int] = []
    drawn_from: list[NDArray[np.float64]] = []
    while engine.has_work:
        for chunk in engine.step():
            tokens += chunk.token_ids
            drawn_from += [distribution(logprob) for logprob in chunk.logprobs if logprob is not None]
    return tokens, drawn_from


def distribution(logprob: TokenLogprob) -> NDArray[np.float64]:
    ids, values = zip(*logprob.top, strict=True)
    scaled = np.empty(len(ids))
    scaled[list(ids)] = np.array(values) / TEMPERATURE
    weights: NDArray[np.float64] = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def drawn_otherwise(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The share of all numbers in [0, 1) for which an inverse CDF in order of token ids gives another token."""
    if np.array_equal(one, other):
        return 0.0
    ends = one.cumsum(), other.cumsum()
    begins = [np.concatenate(([0.0], end[:-1])) for end in ends]
    same = np.minimum(*ends) - np.maximum(*begins)
    return float(1 - same.clip(min=0).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--kernels", default="auto", choices=("auto", "off"))
    parser.add_argument("--answers", type=int, default=4)
    options = parser.parse_args()
    config = EngineConfig(dtype=options.dtype, device="cpu", cpu_kernels=options.kernels, kv_cache_mib=64)
    limits = engine_limits(DEMO, config)
    runner = build_runner(DEMO, config, limits.num_pages)
    rng = np.random.default_rng(1)
    num_rows = num_apart = num_other = 0
    otherwise: list[float] = []
    apart: list[float] = []
    for seed in range(options.answers):
        prompt = rng.integers(9, limits.vocab_size, size=8 + 40 * seed).tolist()
        whole = request(prompt, [], NUM_TOKENS, seed, limits.vocab_size)
        tokens, drawn_from = generated(NativeEngine(limits, runner), whole)
        for at in range(1 + seed, NUM_TOKENS, RESUMED_EVERY):
            resumed = request(prompt, tokens[:at], at + 1, seed, limits.vocab_size)
            (token,), (now,) = generated(NativeEngine(limits, runner), resumed)
            num_rows += 1
            num_apart += not np.array_equal(now, drawn_from[at])
            num_other += token != tokens[at]
            otherwise.append(drawn_otherwise(drawn_from[at], now))
            apart.append(float(np.abs(drawn_from[at] - now).sum() / 2))
    form = "native kernels" if options.kernels == "auto" and native_library() is not None else "torch's forms"
    print(
        f"{form}, {options.dtype}: {num_rows} tokens after a resumption, "
        f"{num_apart} with other scores, {num_other} drawn otherwise; "
        f"drawn otherwise on average {np.mean(otherwise):.1e}, apart {np.mean(apart):.1e}"
    )


if __name__ == "__main__":
    main()
