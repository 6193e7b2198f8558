"""A mixture of experts natively, beside transformers' own forms and the memory floor, on this CPU.

    python scripts/bench/engine/bench_moe.py model --dtype bf16
    python scripts/bench/engine/bench_moe.py layer --dtype f32

The model is a Qwen3-MoE with random weights: 12 layers of hidden size 768, 8 experts of inner size 1024 each, of which
a row chooses 2. Its active parameters are those of the dense model M of `bench_engine` (125M).

`model` times whole steps: a prompt of 512 tokens, and decoding with 1, 8 and 32 sequences behind 128 tokens each. The
native model and transformers in each of its forms of experts (`eager`, `grouped_mm` and, where rows are few,
`batched_mm`, which copies the weights of each row) take turns, round by round, in one process with the same threads.
`layer` times the experts of one layer alone, as `grouped_experts` and as transformers' module, over all 12 layers in
turn, so that no weights stay in the caches.

The floor is the time that memory needs for the bytes that a decode step must read: all weights but the embedding, and
of the experts those that were hit (counted by the kernels). The bandwidth is measured in the same rounds, as a sum over
an array of 512 MiB, the best of all. Figures are medians; on a busy machine only their quotients say something.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3MoeConfig, Qwen3MoeForCausalLM

from slipstream.kernels.cpu.grouped_experts import grouped_experts, pack_experts
from slipstream.kernels.cpu.native_library import native_library
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.native_model import NativeModel, load_native

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
FORMS = ("eager", "grouped_mm", "batched_mm")
MOST_BATCHED = 8  # rows; beyond, it takes seconds
PAGE_TOKENS = 16
PROMPT, CONTEXT = 512, 128
BATCHES = (1, 8, 32)
SHAPE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 2048,
    "moe_intermediate_size": 1024,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "initializer_range": 0.05,
}


@dataclass
class Clock:
    """Seconds of each subject in each section."""

    times: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def measure(self, section: str, subject: str, run: Callable[[], object]) -> None:
        began = time.perf_counter()
        run()
        self.times[section][subject].append(time.perf_counter() - began)

    def median(self, section: str, subject: str) -> float:
        return statistics.median(self.times[section][subject])


class NativeSteps:
    """The native model over a pool of random keys and values."""

    def __init__(self, model: NativeModel) -> None:
        pages = max(PROMPT // PAGE_TOKENS, max(BATCHES) * (CONTEXT // PAGE_TOKENS + 1)) + 1
        self.model = model
        self.kv = torch.randn(kv_shape(model.config, model.tp, pages, PAGE_TOKENS)).to(model.dtype)

    def prompt(self, ids: list[int]) -> Callable[[], object]:
        table = np.arange(PROMPT // PAGE_TOKENS, dtype=np.int32).tobytes()
        return self._step([SequenceSlice(0, tuple(ids), table, True)])

    def decode(self, ids: list[int]) -> Callable[[], object]:
        num_pages = CONTEXT // PAGE_TOKENS + 1
        return self._step(
            [
                SequenceSlice(
                    CONTEXT, (token,), np.arange(i * num_pages, (i + 1) * num_pages, dtype=np.int32).tobytes(), True
                )
                for i, token in enumerate(ids)
            ]
        )

    def _step(self, slices: list[SequenceSlice]) -> Callable[[], object]:
        batch = StepBatch(StepArrays.build(slices, PAGE_TOKENS), PAGE_TOKENS, torch.device("cpu"))
        return lambda: self.model.greedy(batch, self.kv)

    def hit_experts(self, run: Callable[[], object]) -> int:
        """Of all layers, in one step."""
        rows = self.model.expert_rows
        assert rows is not None
        before = rows.copy()
        run()
        return int(np.count_nonzero(rows - before))


class TheirSteps:
    """transformers' model. `form` is its way of computing experts."""

    def __init__(self, model: Qwen3MoeForCausalLM, form: str) -> None:
        self._model, self._form = model, form

    def prompt(self, ids: list[int]) -> Callable[[], object]:
        return self._step(torch.tensor([ids]), None)

    def decode(self, ids: list[int]) -> Callable[[], object]:
        cache = DynamicCache(config=self._model.config)
        config = self._model.config
        for layer in range(config.num_hidden_layers):
            shape = (len(ids), config.num_key_value_heads, CONTEXT, config.head_dim)
            cache.update(torch.randn(shape).to(self._model.dtype), torch.randn(shape).to(self._model.dtype), layer)
        return self._step(torch.tensor(ids)[:, None], cache)

    def _step(self, ids: Tensor, cache: DynamicCache | None) -> Callable[[], object]:
        @torch.inference_mode()
        def run() -> Tensor:
            self._model.set_experts_implementation(self._form)
            scores: Tensor = self._model(
                ids, past_key_values=cache, use_cache=cache is not None, logits_to_keep=1
            ).logits
            if cache is not None:
                cache.crop(CONTEXT)
            return scores[:, -1].argmax(-1)

        return run


def bandwidth(clock: Clock, memory: Tensor) -> None:
    clock.measure("memory", "read", memory.sum)


def model_dir(directory: Path, dtype: str) -> Path:
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE)).to(DTYPES[dtype]).save_pretrained(directory)
    return directory


def bench_model(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = model_dir(Path(folder), args.dtype)
        library = native_library()
        assert library is not None
        library.slipstream_set_num_threads(args.threads)
        native = NativeSteps(load_native(directory, library, dtype=DTYPES[args.dtype], page_tokens=PAGE_TOKENS))
        theirs = Qwen3MoeForCausalLM.from_pretrained(directory, dtype=DTYPES[args.dtype]).eval()
    config, item = native.model.config, DTYPES[args.dtype].itemsize
    assert config.moe is not None
    rng = np.random.default_rng(0)
    clock, memory, runs, hits = Clock(), torch.ones(2**27), {}, {}
    for section, count in (("prompt", PROMPT), *((f"decode {batch}", batch) for batch in BATCHES)):
        ids = rng.integers(3, config.vocab_size, count).tolist()
        kind = "prompt" if section == "prompt" else "decode"
        runs[section] = {"native": getattr(native, kind)(ids)}
        runs[section] |= {form: getattr(TheirSteps(theirs, form), kind)(ids) for form in forms(count)}
        hits[section] = native.hit_experts(runs[section]["native"])
    rounds(clock, runs, args.rounds, memory)
    expert = 3 * config.hidden_size * config.moe.intermediate_size * item
    attention = config.hidden_size * (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    other = (config.num_layers * attention + config.vocab_size * config.hidden_size) * item
    rate = memory.nbytes / min(clock.times["memory"]["read"])
    print(f"{args.dtype}, {args.threads} threads, memory read {rate / 1e9:.1f} GB/s; medians of {args.rounds} rounds\n")
    print("| step | native ms | " + " | ".join(f"{form} ms" for form in FORMS) + " | best / native | native / floor |")
    print("|---|--:|" + "--:|" * len(FORMS) + "--:|--:|")
    for section, subjects in runs.items():
        ours, *others = (clock.median(section, subject) for subject in subjects)
        floor = (hits[section] * expert + other) / rate
        below = (
            "" if section == "prompt" else f"{ours / floor:.2f} ({hits[section] / config.num_layers:.1f} experts hit)"
        )
        print(row(section, ours, others, f"{min(others) / ours:.2f}", below))


def bench_layer(args: argparse.Namespace) -> None:
    library = native_library()
    assert library is not None
    library.slipstream_set_num_threads(args.threads)
    torch.manual_seed(0)
    theirs = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE)).to(DTYPES[args.dtype]).eval()
    modules = [layer.mlp.experts for layer in theirs.model.layers]
    packed = [pack_experts(library, m.gate_up_proj.data, m.down_proj.data, gate="silu") for m in modules]
    clock, memory, runs, hits = Clock(), torch.ones(2**27), {}, {}

    def both(x: Tensor, index: Tensor, weights: Tensor) -> dict[str, Callable[[], object]]:
        @torch.inference_mode()
        def run(form: str) -> None:
            theirs.set_experts_implementation(form)
            for module in modules:
                module(x, index, weights)

        ours = {"native": lambda: [grouped_experts(x, index, weights, layer) for layer in packed]}
        return ours | {form: (lambda form=form: run(form)) for form in forms(len(x))}

    for count in (*BATCHES, PROMPT):
        x = torch.randn(count, SHAPE["hidden_size"]).to(DTYPES[args.dtype])
        weights, index = torch.randn(count, 8).softmax(-1).topk(2)
        section = f"{count} rows"
        runs[section], hits[section] = both(x, index, weights.to(x.dtype)), len(index.unique())
    rounds(clock, runs, args.rounds, memory)
    expert = 3 * SHAPE["hidden_size"] * SHAPE["moe_intermediate_size"] * DTYPES[args.dtype].itemsize
    rate = memory.nbytes / min(clock.times["memory"]["read"])
    print(f"{args.dtype}, {args.threads} threads, memory read {rate / 1e9:.1f} GB/s; medians of {args.rounds} rounds\n")
    print(
        "| experts of 12 layers | native ms | "
        + " | ".join(f"{f} ms" for f in FORMS)
        + " | best / native | native / floor |"
    )
    print("|---|--:|" + "--:|" * len(FORMS) + "--:|--:|")
    for section, subjects in runs.items():
        ours, *others = (clock.median(section, subject) for subject in subjects)
        floor = len(modules) * hits[section] * expert / rate
        print(
            row(section, ours, others, f"{min(others) / ours:.2f}", f"{ours / floor:.2f} ({hits[section]} experts hit)")
        )


def rounds(clock: Clock, runs: dict[str, dict[str, Callable[[], object]]], count: int, memory: Tensor) -> None:
    """All subjects of a section in turn; the first round only warms up."""
    for number in range(count + 1):
        target = clock if number else Clock()
        for section, subjects in runs.items():
            bandwidth(target, memory)
            for subject, run in subjects.items():
                target.measure(section, subject, run)


def forms(num_rows: int) -> tuple[str, ...]:
    return FORMS if num_rows <= MOST_BATCHED else FORMS[:2]


def row(name: str, ours: float, others: list[float], *quotients: str) -> str:
    times = [f"{seconds * 1e3:.2f}" for seconds in (ours, *others)]
    times += [""] * (1 + len(FORMS) - len(times))
    return f"| {' | '.join((name, *times, *quotients))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["model", "layer"])
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    (bench_model if args.what == "model" else bench_layer)(args)


if __name__ == "__main__":
    main()
