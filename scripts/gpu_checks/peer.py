"""The requests of the engine check through the continuous batching of transformers: same shape, random weights, same
GPU."""

from __future__ import annotations

import gc
import importlib
import time
import traceback
from typing import Any

import torch
from gpu_checks.engine import STEP as ENGINE_STEP
from gpu_checks.engine import batch_name, sizes
from gpu_checks.setting import Setting
from gpu_checks.shapes import WEIGHT_SCALE, hf_config
from gpu_checks.subject import Work

STEP = "peer"
TARGET = 5.0  # times the peer's rate


def run(setting: Setting) -> None:
    transformers: Any = importlib.import_module("transformers")  # seconds; no other step needs it
    for shape in sizes(setting).shapes:
        try:
            _measure(setting, transformers, shape)
        except Exception as error:  # whatever is wrong with one, the other is still to be measured
            traceback.print_exc()
            note = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
            setting.add(STEP, f"transformers: {shape}", failed=True, note=note)
        if setting.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def _measure(setting: Setting, transformers: Any, shape: str) -> None:
    of = sizes(setting)
    model = _model(transformers, shape, setting.device)
    _generate(transformers, model, Work(2, 16, 4), model.config.vocab_size)  # loads kernels
    tokens, seconds, how = _generate(transformers, model, of.work, model.config.vocab_size)
    rate = tokens / seconds
    name = batch_name(f"{shape} bf16", of.work)
    note = f"transformers {transformers.__version__}, attention {how}"
    setting.add(STEP, f"transformers: {name}", rate, "tok/s", note=note)
    ours = [row.value for row in setting.book.rows(ENGINE_STEP) if row.name == name and row.value]
    if ours:
        gain = ours[-1] / rate
        note = f"share of {TARGET} x"
        setting.add(STEP, f"ours against it: {name}", gain, "x", share=gain / TARGET, target=1.0, note=note)


def _model(transformers: Any, shape: str, device: torch.device) -> Any:
    """Its own initialisation is skipped: it draws the weights one by one on the CPU."""
    config = transformers.LlamaConfig(**hf_config(shape))
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device=device).eval()
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=WEIGHT_SCALE)
        # Buffers have no values on "meta": the frequencies are computed again on the device.
        model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    return model


def _generate(transformers: Any, model: Any, work: Work, vocab_size: int) -> tuple[int, float, str]:
    """(tokens, seconds from the first request in to the last token out, attention implementation)."""
    generation = transformers.GenerationConfig(
        max_new_tokens=work.num_output, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    begun = time.perf_counter()
    # By default its cache takes nearly all memory that there is: right on a GPU that is its alone, not on a CPU.
    small = None
    if model.device.type == "cpu":
        small = transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)
    outputs = model.generate_batch(
        work.prompts(vocab_size),
        generation_config=generation,
        continuous_batching_config=small,
        record_timestamps=True,
        progress_bar=False,
    )
    wall_s = time.perf_counter() - begun
    results = list(outputs.values())
    num_tokens = sum(len(result.generated_tokens) for result in results)
    if len(results) != work.num_seqs or num_tokens != work.num_seqs * work.num_output:
        raise RuntimeError(f"{len(results)} of {work.num_seqs} requests came back, with {num_tokens} tokens")
    stamps = [stamp for result in results for stamp in result.timestamps or ()]
    # Without its start-up, which allocates the cache and records graphs.
    seconds = max(stamps) - min(result.created_time for result in results) if stamps else wall_s
    return num_tokens, seconds, str(model.config._attn_implementation)
