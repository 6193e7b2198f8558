"""What the machine can do at best: the rates that everything else is a share of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpu_checks.setting import Setting
from gpu_checks.timing import time_calls

STEP = "ceilings"
COPY, MATMUL, FP8_MATMUL = "device copy (read + written)", "bf16 matmul", "fp8 matmul"
COPY_BYTES = 4 << 30  # of each of two tensors
MATMUL_SIZE = 8192


@dataclass(frozen=True, slots=True)
class Ceilings:
    bytes_per_s: float
    flops_per_s: float


def run(setting: Setting) -> None:
    _copy(setting)
    _matmul(setting)


def _copy(setting: Setting) -> None:
    size = 1 << 20 if setting.is_dry else COPY_BYTES
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    copy = time_calls(lambda: target.copy_(source), setting.device)
    setting.add(STEP, COPY, 2 * size / copy.seconds / 1e9, "GB/s", note=f"{size >> 20} MiB, spread {copy.spread:.1%}")


def _matmul(setting: Setting) -> None:
    """On random data: a matrix product of zeros takes less power and runs faster than any real one."""
    n = 128 if setting.is_dry else MATMUL_SIZE
    a, b = torch.randn(2, n, n, device=setting.device, dtype=torch.bfloat16)
    product = torch.empty_like(a)
    matmul = time_calls(lambda: torch.mm(a, b, out=product), setting.device)
    rate = 2 * n**3 / matmul.seconds / 1e12
    setting.add(STEP, MATMUL, rate, "TFLOP/s", note=f"{n} x {n} x {n}, spread {matmul.spread:.1%}")
    if setting.device.type == "cuda":
        _fp8(setting, a, b)


def _fp8(setting: Setting, a: torch.Tensor, b: torch.Tensor) -> None:
    x, w = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=a.device)

    def product() -> torch.Tensor:
        out: torch.Tensor = torch._scaled_mm(x, w, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return out

    try:
        timing = time_calls(product, setting.device)
    except RuntimeError as error:
        setting.add(STEP, FP8_MATMUL, note=f"not measured: {error}")
        return
    setting.add(STEP, FP8_MATMUL, 2 * len(a) ** 3 / timing.seconds / 1e12, "TFLOP/s", note="one scale a tensor")


def ceilings(setting: Setting) -> Ceilings:
    """Those that this run has measured; measured now where it has not."""
    found = {row.name: row.value for row in setting.book.rows(STEP)}
    if COPY not in found or MATMUL not in found:
        run(setting)
        return ceilings(setting)
    copy, matmul = found[COPY], found[MATMUL]
    assert copy is not None
    assert matmul is not None
    return Ceilings(copy * 1e9, matmul * 1e12)
