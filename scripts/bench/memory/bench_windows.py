"""What page groups save where layers have windows: pages of one sequence, and throughput under a small pool.

    python scripts/bench/memory/bench_windows.py [pages] [throughput]

`pages` computes a prompt of 32k tokens with models that compute nothing, of the layers of gpt-oss and Gemma 3, with
page groups and with all layers in one page. `throughput` runs a random model of the demo model's size whose layers
alternate between a window and all keys, in a pool of few MiB, both ways in turn.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from slipstream.router.protocol.messages import EngineRequest, SamplingParams, pack_ids
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_runner, engine_limits
from slipstream.workers.engine.limits.engine_limits import EngineLimits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import SampledTokens, SamplingRow, StepPlan
from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.directory.page_groups import PageGroups

PAGE_TOKENS = 16
PROMPT_TOKENS = 32 * 1024
STEP_TOKENS = 2048
SPECS = {
    "gpt-oss-20b": KvSpec.uniform(8, 64, (128, None) * 12),
    "gemma-3-27b": KvSpec.uniform(16, 128, tuple(None if layer % 6 == 5 else 1024 for layer in range(62))),
}
POOL_MIB = 8
WINDOW = 128
NUM_ROUNDS = 1
NUM_REQUESTS, NUM_PROMPT, NUM_OUTPUT = 24, 600, 100


class NoModel:
    def execute(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> SampledTokens:
        return SampledTokens([7] * len(plan.arrays.sample_rows))


def in_one_page(spec: KvSpec) -> PageGroups:
    return PageGroups.single(len(spec.layers))


def measure_pages() -> None:
    print("| layers of | pages hold | page KiB | most pages | most MiB | pages at the end | MiB at the end |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, spec in SPECS.items():
        for what, groups in (("all layers", in_one_page(spec)), ("a group", spec.page_groups)):
            page_bytes = groups.num_slots * spec.layers[0].numbers * 2 * PAGE_TOKENS
            most, at_end = pages_of_a_sequence(groups.windows)
            mib = page_bytes / 2**20
            print(
                f"| {name} | {what} ({len(groups.windows)} x {groups.num_slots}) | {page_bytes >> 10} | {most} "
                f"| {most * mib:.0f} | {at_end} | {at_end * mib:.0f} |"
            )


def pages_of_a_sequence(windows: tuple[int | None, ...]) -> tuple[int, int]:
    """The most pages that a sequence owns while its prompt is computed, and those that it owns while it decodes."""
    limits = EngineLimits(
        num_pages=len(windows) * (PROMPT_TOKENS // PAGE_TOKENS + 8),
        page_tokens=PAGE_TOKENS,
        max_model_len=PROMPT_TOKENS + 64,
        max_num_seqs=1,
        max_step_tokens=STEP_TOKENS,
        max_queued_tokens=PROMPT_TOKENS,
        vocab_size=100,
        eos_token_ids=(),
        model_id="none",
        windows=windows,
    )
    engine = NativeEngine(limits, NoModel())
    prompt = pack_ids(token % 90 for token in range(PROMPT_TOKENS))
    engine.add(EngineRequest("a", 0, prompt, b"", SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)))
    most = at_end = 0
    while engine.has_work:
        engine.step()
        if num_owned := engine.page_counts()["active"]:
            most, at_end = max(most, num_owned), num_owned
    return most, at_end


def measure_throughput() -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 4,
    )
    with tempfile.TemporaryDirectory() as folder:
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        print("| pages hold | output tokens a second | running at the most | preemptions |")
        print("| --- | ---: | ---: | ---: |")
        rounds: dict[str, list[tuple[float, int, int]]] = {"all layers": [], "a group": []}
        for _ in range(NUM_ROUNDS):
            for what, taken in rounds.items():
                taken.append(throughput(Path(folder), has_groups=what == "a group"))
        for what, taken in rounds.items():
            speed, running, preempted = (statistics.median(column) for column in zip(*taken, strict=True))
            print(f"| {what} | {speed:.0f} | {running} | {preempted} |")


def throughput(model_dir: Path, *, has_groups: bool) -> tuple[float, int, int]:
    """Output tokens a second, the most sequences in a step, preemptions."""
    settings = EngineConfig(
        kv_cache_mib=POOL_MIB, page_tokens=PAGE_TOKENS, max_num_seqs=NUM_REQUESTS, weight_cache_dir=None
    )
    groups = KvSpec.page_groups if has_groups else property(in_one_page)
    with mock.patch.object(KvSpec, "page_groups", groups):
        limits = replace(engine_limits(model_dir, settings), max_queued_tokens=2**20)
        engine = NativeEngine(limits, build_runner(model_dir, settings, limits.num_pages))
        rng = random.Random(0)
        for at in range(NUM_REQUESTS):
            prompt = pack_ids(rng.randrange(8192) for _ in range(NUM_PROMPT))
            params = SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0, ignore_eos=True)
            engine.add(EngineRequest(f"r{at}", 0, prompt, b"", params))
        began_s, most = time.perf_counter(), 0
        while engine.has_work:
            engine.step()
            most = max(most, engine.stats().num_running)
        seconds = time.perf_counter() - began_s
    return NUM_REQUESTS * NUM_OUTPUT / seconds, most, engine.stats().total_preemptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="pages, throughput; both if none is named")
    what = parser.parse_args().what or ["pages", "throughput"]
    if "pages" in what:
        measure_pages()
    if "throughput" in what:
        measure_throughput()


if __name__ == "__main__":
    main()
