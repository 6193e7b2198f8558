"""What fewer bits cost in quality, and what they gain in speed on this CPU.

    python scripts/bench/engine/bench_quantization.py loss
    python scripts/bench/engine/bench_quantization.py speed

`loss` reads held-out files of the standard library (see `scripts/demo_model/corpus.py`) in windows, in steps of a few
tokens each, so that most keys and values come from KV pages. All variants read the same windows: the standard error is
that of the mean difference to bf16 over windows. Scales are chosen as `engine.quantization` does it, for each output
(fp8, int8), or for groups of inputs (int4), with smaller groups where a layer's inputs do not divide.

`speed` times decode steps of the engine with a model of 100M parameters with random weights, or with `--model-dir`'s:
variants take turns, figures are medians over all rounds. Nothing is left on the disk.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from slipstream.kernels.cpu.native_library import native_library
from slipstream.kernels.quantization.quantized_weight import dequantize, quantize_int4
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, pack_ids
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_engine, build_runner, engine_limits
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.models.directory.stored_quantization import KvCacheDtype, OnLoad
from slipstream.workers.models.interface.kv_shape import kv_dtype, kv_shape
from slipstream.workers.models.interface.step_arrays import SequenceSlice
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.native_model import NativeModel, load_native

ROOT = Path(__file__).resolve().parents[3]
DEMO_MODEL = ROOT / "models" / "slipstream-demo"
sys.path.insert(0, str(ROOT))

from scripts.bench.engine.yardstick_models import make_model  # noqa: E402
from scripts.demo_model.corpus import load_corpus  # noqa: E402
from scripts.demo_model.tokenizer import encode  # noqa: E402

PAGE_TOKENS = 16
WINDOWS_OF_STEP = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """`int4_group` rounds the weights to 4 bits in groups of so many inputs before they are loaded."""

    name: str
    dtype: torch.dtype = torch.bfloat16
    weights: OnLoad = "none"
    pages: KvCacheDtype = "auto"
    int4_group: int | None = None


BASELINE = Variant("bf16")
LOSS_VARIANTS = (
    Variant("fp32", torch.float32),
    BASELINE,
    Variant("FP8 weights", weights="fp8"),
    Variant("INT8 weights", weights="int8"),
    Variant("INT4 weights, groups of 32", int4_group=32),
    Variant("INT4 weights, groups of 64", int4_group=64),
    Variant("INT4 weights, groups of 128 (`quantization: int4`)", weights="int4"),
    Variant("FP8 KV", pages="fp8"),
    Variant("INT8 KV", pages="int8"),
    Variant("FP8 weights, FP8 KV", weights="fp8", pages="fp8"),
    Variant("INT8 weights, INT8 KV", weights="int8", pages="int8"),
)
SPEED_VARIANTS = (
    BASELINE,
    Variant("FP8 weights", weights="fp8"),
    Variant("INT8 weights", weights="int8"),
    Variant("INT4 weights", weights="int4"),
    Variant("FP8 KV", pages="fp8"),
    Variant("INT8 KV", pages="int8"),
    Variant("FP8 weights, FP8 KV", weights="fp8", pages="fp8"),
    Variant("INT8 weights, INT8 KV", weights="int8", pages="int8"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=("loss", "speed"))
    parser.add_argument("--model-dir", type=Path)
    parser.add_argument("--windows", type=int, default=256, help="loss: how many")
    parser.add_argument("--window-tokens", type=int, default=256)
    parser.add_argument("--chunk-tokens", type=int, default=32, help="loss: of a window in each step")
    parser.add_argument("--rounds", type=int, default=3, help="speed: how often all variants take a turn")
    parser.add_argument("--steps", type=int, default=24, help="speed: decode steps a turn")
    parser.add_argument("--cells", default="1x128,8x128,8x1024", help="speed: sequences x tokens of context, ...")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    library = native_library()
    if library is None:
        raise SystemExit("there are no native kernels here, and quantised weights gain nothing without")
    library.slipstream_set_num_threads(args.threads)
    torch.set_num_threads(args.threads)
    if args.section == "loss":
        model_dir = args.model_dir or DEMO_MODEL
        print_losses(model_dir, library, windows_of(model_dir, args), args.chunk_tokens)
        return
    cells = [tuple(map(int, cell.split("x"))) for cell in args.cells.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        print_speeds(args.model_dir or make_model("M-bf16", Path(folder)), cells, args)


def windows_of(model_dir: Path, args: argparse.Namespace) -> Tensor:
    """[windows, tokens]: taken at equal distances from all held-out files, one behind the other."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_dir)
    _, held_out = load_corpus()
    ids = torch.from_numpy(encode(tokenizer, held_out.texts).astype(np.int64))
    windows = ids[: len(ids) // args.window_tokens * args.window_tokens].view(-1, args.window_tokens)
    picked = np.linspace(0, len(windows) - 1, min(args.windows, len(windows))).astype(np.int64)
    return windows[picked]


def print_losses(model_dir: Path, library: ctypes.CDLL, windows: Tensor, chunk_tokens: int) -> None:
    losses = {}
    for variant in LOSS_VARIANTS:
        began_s = time.monotonic()
        with rounded_checkpoint(model_dir, variant.int4_group) as directory:
            losses[variant] = window_losses(load(directory, library, variant), windows, chunk_tokens)
        print(f"{variant.name}: {time.monotonic() - began_s:.1f} s", file=sys.stderr)
    of_baseline = losses[BASELINE]
    print(f"{len(windows)} windows of {windows.shape[1]} tokens in steps of {chunk_tokens}\n")
    print("|  | nats/token | ratio to bf16 | difference | its standard error |")
    print("|---|---:|---:|---:|---:|")
    for variant, loss in losses.items():
        difference = loss - of_baseline
        error = difference.std() / math.sqrt(len(difference))
        ratio = loss.mean() / of_baseline.mean()
        print(f"| {variant.name} | {loss.mean():.4f} | {ratio:.4f} | {difference.mean():+.4f} | {error:.4f} |")


@contextmanager
def rounded_checkpoint(model_dir: Path, group: int | None) -> Iterator[Path]:
    """A directory with the model's linear layers rounded to 4 bits in groups; without a group the model's own."""
    if group is None:
        yield model_dir
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(model_dir / "config.json", folder)
        tensors = load_file(model_dir / "model.safetensors")
        for name, tensor in tensors.items():
            if name.endswith("_proj.weight"):
                tensors[name] = dequantize(quantize_int4(tensor.float(), math.gcd(tensor.shape[1], group)))
        save_file(tensors, Path(folder) / "model.safetensors")
        yield Path(folder)


def load(model_dir: Path, library: ctypes.CDLL, variant: Variant) -> NativeModel:
    return load_native(
        model_dir,
        library,
        dtype=variant.dtype,
        page_tokens=PAGE_TOKENS,
        of_pages=kv_dtype(variant.pages, variant.dtype),
        quantization=variant.weights,
    )


def window_losses(model: NativeModel, windows: Tensor, chunk_tokens: int) -> Tensor:
    """Mean negative log-likelihood of each window's tokens, the first of which is given: [windows] in float64."""
    num_tokens = windows.shape[1]
    pages_of_window = -(-num_tokens // PAGE_TOKENS)
    shape = kv_shape(model.config, model.tp, WINDOWS_OF_STEP * pages_of_window, PAGE_TOKENS, model.of_pages)
    losses = torch.zeros(len(windows), dtype=torch.float64)
    for first in range(0, len(windows), WINDOWS_OF_STEP):
        batch = windows[first : first + WINDOWS_OF_STEP]
        kv = torch.zeros(shape, dtype=model.of_pages)
        for start in range(0, num_tokens - 1, chunk_tokens):
            end = min(start + chunk_tokens, num_tokens - 1)
            slices = list(slices_of(batch[:, start:end], start, pages_of_window))
            scores = model.logits(model.forward(StepBatch.build(slices, PAGE_TOKENS), kv))
            assert scores is not None
            wanted = batch[:, start + 1 : end + 1]
            nats = torch.nn.functional.cross_entropy(scores, wanted.reshape(-1), reduction="none")
            losses[first : first + len(batch)] += nats.view(wanted.shape).double().sum(1)
    return losses / (num_tokens - 1)


def slices_of(batch: Tensor, start: int, pages_of_window: int) -> Iterator[SequenceSlice]:
    """Of [windows, tokens] from position `start` on; each window has its own run of pages."""
    num_pages = -(-(start + batch.shape[1]) // PAGE_TOKENS)
    for row, token_ids in enumerate(batch.tolist()):
        first = row * pages_of_window
        yield SequenceSlice(
            start, tuple(token_ids), np.arange(first, first + num_pages, dtype=np.int32).tobytes(), True
        )


def print_speeds(model_dir: Path, cells: list[tuple[int, ...]], args: argparse.Namespace) -> None:
    engines = {variant: engine_of(model_dir, variant, cells, args) for variant in SPEED_VARIANTS}
    steps_ms: dict[tuple[Variant, tuple[int, ...]], list[float]] = {}
    for turn in range(args.rounds + 1):
        for cell in cells:
            for variant, engine in engines.items():
                times = decode_steps_ms(engine, *cell, num_steps=args.steps)
                if turn:  # the first only warms up
                    steps_ms.setdefault((variant, cell), []).extend(times)
    header = "".join(f" {seqs} x {context} ms | ratio |" for seqs, context in cells)
    print(f"| decode step of batch x context |{header}\n|---|{'---:|---:|' * len(cells)}")
    for variant in engines:
        row = ""
        for cell in cells:
            ours, baseline = (statistics.median(steps_ms[v, cell]) for v in (variant, BASELINE))
            row += f" {ours:.2f} | {ours / baseline:.2f} |"
        print(f"| {variant.name} |{row}")


def engine_of(
    model_dir: Path, variant: Variant, cells: list[tuple[int, ...]], args: argparse.Namespace
) -> NativeEngine:
    pages = max(seqs * -(-(context + args.steps + PAGE_TOKENS) // PAGE_TOKENS) for seqs, context in cells)
    config = EngineConfig(
        dtype="bfloat16",
        device="cpu",
        num_pages=2 * pages,
        num_threads=args.threads,
        weight_cache_dir=None,
        quantization=variant.weights,
        kv_cache_dtype=variant.pages,
    )
    limits = engine_limits(model_dir, config)
    return build_engine(limits, build_runner(model_dir, config, limits.num_pages))


def decode_steps_ms(engine: NativeEngine, num_seqs: int, context: int, *, num_steps: int) -> list[float]:
    """Of the steps that decode all sequences at once."""
    vocab = engine.limits.vocab_size
    sampling = SamplingParams(max_tokens=num_steps + 2, temperature=0.0, ignore_eos=True)
    for i in range(num_seqs):
        prompt = pack_ids((31 * i + 7 * position) % (vocab - 10) + 5 for position in range(context))
        engine.add(EngineRequest(f"r{i}", 0, prompt, b"", sampling))
    times = []
    while engine.has_work:
        began_s = time.perf_counter()
        outputs = engine.step()
        elapsed_ms = (time.perf_counter() - began_s) * 1e3
        if len(outputs) == num_seqs and all(output.index > 0 for output in outputs):
            times.append(elapsed_ms)
    return times


if __name__ == "__main__":
    main()
