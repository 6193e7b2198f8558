"""The engine with random weights: decode and prefill steps against their floors, and a whole batch of requests."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

import torch
from gpu_checks.ceilings import Ceilings, ceilings
from gpu_checks.setting import Setting
from gpu_checks.shapes import BF16, FORMS, FP8, FP8_KV, SHAPES, TINY, kv_token_bytes, prefill_flops, weight_bytes
from gpu_checks.subject import Subject, Work, make_subject, requests
from gpu_checks.timing import time_on_host

from slipstream.kernels.gpu_modules import gpu_module
from slipstream.kernels.ops import Ops, TorchOps

STEP = "engine"
DECODE_TARGETS = {("Llama-3.1-8B bf16", 1): 0.80, ("Llama-3.1-8B bf16", 64): 0.75}
PREFILL_TARGET = 0.60
FP8_TARGET = 1.6  # times the decode rate of bfloat16


@dataclass(frozen=True, slots=True)
class Sizes:
    shapes: tuple[str, ...]
    decode: tuple[tuple[int, int], ...]  # (sequences, context)
    prefill: int
    work: Work
    rounds: int

    @property
    def num_tokens(self) -> int:
        """That the pool must hold."""
        work = self.work.num_seqs * (self.work.num_prompt + self.work.num_output)
        return 32 + max(work, self.prefill, *(seqs * context for seqs, context in self.decode)) // 16 * 16


FULL = Sizes(tuple(SHAPES), ((1, 128), (64, 2048)), 4096, Work(64, 512, 128), 30)
DRY = Sizes(tuple(TINY), ((1, 8), (4, 32)), 32, Work(4, 16, 4), 3)


def sizes(setting: Setting) -> Sizes:
    return DRY if setting.is_dry else FULL


def run(setting: Setting) -> None:
    known, of = ceilings(setting), sizes(setting)
    for shape in of.shapes:
        step_s: dict[tuple[str, int, int], float] = {}
        for form in FORMS:
            begun = time.perf_counter()
            subject = make_subject(
                shape,
                form,
                _device_ops(setting),
                setting.device,
                num_tokens=of.num_tokens,
                max_num_seqs=max(seqs for seqs, _ in of.decode),
                max_step_tokens=max(of.prefill, 2048),
            )
            name = f"{shape} {form.name}"
            setting.add(STEP, f"{name}: weights made, decoding recorded", time.perf_counter() - begun, "s")
            for seqs, context in of.decode:
                target = DECODE_TARGETS.get((name, seqs))
                step_s[form.name, seqs, context] = _decode(setting, subject, known, name, seqs, context, target)
            _prefill(setting, subject, known, name, of.prefill)
            if form == BF16:
                _batch(setting, subject, name, of.work)
            del subject
            gc.collect()  # a runner and its graphs refer to each other
            if setting.device.type == "cuda":
                torch.cuda.empty_cache()
        for form in (FP8, FP8_KV):
            for seqs, context in of.decode:
                gain = step_s[BF16.name, seqs, context] / step_s[form.name, seqs, context]
                # With many sequences most of the bytes are keys and values, which fp8 weights leave as they are.
                wanted = 1.0 if not setting.is_dry and (seqs == 1 or form.fp8_kv) else None
                name = f"{shape} decode {seqs} x {context}: {form.name} against bf16"
                note = f"share of {FP8_TARGET} x"
                setting.add(STEP, name, gain, "x", share=gain / FP8_TARGET, target=wanted, note=note)


def _device_ops(setting: Setting) -> Ops:
    """The ops of the device that is checked."""
    module = gpu_module("gpu.triton_ops") if setting.device.type == "cuda" else None
    if module is None:
        return TorchOps()
    ops: Ops = module.TritonOps()
    return ops


def _decode(
    setting: Setting, subject: Subject, known: Ceilings, name: str, seqs: int, context: int, target: float | None
) -> float:
    """Seconds of a whole step, from the plan to the tokens on the host."""
    plan = subject.decode_plan(seqs, context)
    timing = time_on_host(lambda: subject.executor.execute(plan, []), sizes(setting).rounds)
    pages = seqs * context * kv_token_bytes(subject.model.config, subject.form)
    num_bytes = weight_bytes(subject.model) + pages
    floor_s = num_bytes / known.bytes_per_s
    note = f"floor {floor_s * 1e3:.3f} ms of {num_bytes / 1e9:.2f} GB, {seqs / timing.seconds:.0f} tok/s"
    setting.add(
        STEP,
        f"{name} decode step {seqs} x {context}",
        timing.seconds * 1e3,
        "ms",
        share=floor_s / timing.seconds,
        target=target,
        note=f"{note}, spread {timing.spread:.1%}",
    )
    return timing.seconds


def _prefill(setting: Setting, subject: Subject, known: Ceilings, name: str, num_tokens: int) -> None:
    plan = subject.prefill_plan(num_tokens)
    timing = time_on_host(lambda: subject.executor.execute(plan, []), max(3, sizes(setting).rounds // 3))
    flops = prefill_flops(subject.model.config, num_tokens)
    floor_s = flops / known.flops_per_s
    rates = f"{flops / timing.seconds / 1e12:.0f} TFLOP/s, {num_tokens / timing.seconds:.0f} tok/s"
    setting.add(
        STEP,
        f"{name} prefill {num_tokens}",
        timing.seconds * 1e3,
        "ms",
        share=floor_s / timing.seconds,
        target=PREFILL_TARGET if subject.form == BF16 and not setting.is_dry else None,
        note=f"floor {floor_s * 1e3:.1f} ms at the bf16 matmul rate, {rates}",
    )


def batch_name(model: str, work: Work) -> str:
    return f"{model} {work.num_seqs} requests, {work.num_prompt} in {work.num_output} out"


def _batch(setting: Setting, subject: Subject, name: str, work: Work) -> None:
    """The whole engine, scheduler included: the second of two runs, so that nothing is compiled on the way. Each engine
    begins with an empty prefix cache."""
    rate, num_steps = 0.0, 0
    for _ in range(2):
        engine = subject.engine()
        for request in requests(work, subject.limits.vocab_size):
            engine.add(request)
        begun = time.perf_counter()
        while engine.has_work:
            engine.step()
        stats = engine.stats()
        rate, num_steps = stats.total_sampled_tokens / (time.perf_counter() - begun), stats.total_steps
    setting.add(STEP, batch_name(name, work), rate, "tok/s", note=f"output tokens; {num_steps} steps")
