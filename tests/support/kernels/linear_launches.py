"""Launches of products, norms, gates, page copies and sampling in shapes of production, on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from slipstream.kernels.elementwise.gpu.gated import gated as gate_product
from slipstream.kernels.elementwise.gpu.rms_norm import rms_norm
from slipstream.kernels.linear.gpu.decode_linear import DecodeLinearConfig, decode_linear
from slipstream.kernels.linear.gpu.fp8_linear import fp8_linear
from slipstream.kernels.linear.gpu.int4_linear import int4_linear
from slipstream.kernels.pages.gpu.page_copy import gather_pages, scatter_pages
from slipstream.kernels.quantization.quantized_weight import Fp8Weight, Int4Weight
from slipstream.kernels.sampling.gpu.sampling import Draws, Penalties, Updates, add_scores, penalise, sample

NOTHING_NEW = ", by a kernel that another batch has had compiled"


def bf16(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def fp8(outputs: int, inputs: int, block: tuple[int, int] | None = None) -> Fp8Weight:
    block = (1, inputs) if block is None else block
    codes = torch.empty(outputs, inputs, dtype=torch.float8_e4m3fn, device="meta")
    return Fp8Weight(codes, torch.empty(-(-outputs // block[0]), -(-inputs // block[1]), device="meta"), block)


def int4(outputs: int, inputs: int, group: int) -> Int4Weight:
    codes = torch.empty(outputs, inputs // 8, dtype=torch.int32, device="meta")
    scales = torch.empty(outputs, inputs // group, dtype=torch.float16, device="meta")
    return Int4Weight(codes, scales, torch.empty(scales.shape, dtype=torch.uint8, device="meta"))


def sampling_launches() -> dict[str, Callable[[], object]]:
    logits = torch.empty(64, 128256, device="meta")
    one, wide = torch.empty(64, device="meta"), torch.empty(64, dtype=torch.float64, device="meta")
    whole = torch.empty(64, dtype=torch.int32, device="meta")
    updates = Updates(whole, whole, one)
    return {
        "sample greedy": partial(sample, logits, None),
        "sample": partial(sample, logits, Draws(one, one, whole, wide, wide)),
        "penalise": partial(penalise, logits, Penalties(updates, one, one, one)),
        "add_scores": partial(add_scores, logits, updates),
    }


def launches() -> dict[str, Callable[[], object]]:
    pool, page_ids = bf16(32, 1000, 8, 2, 16, 128), torch.empty(100, dtype=torch.int64, device="meta")
    heads = bf16(64, 48, 128)[:, :40]
    calls: dict[str, Callable[[], object]] = sampling_launches() | {
        "rms_norm": lambda: rms_norm(bf16(64, 4096), bf16(4096), 1e-5),
        "rms_norm add": lambda: rms_norm(bf16(64, 4096), bf16(4096), 1e-5, bf16(64, 4096)),
        "rms_norm heads": lambda: rms_norm(heads, bf16(40, 128), 1e-5),
        "gated silu": lambda: gate_product(bf16(64, 28672)),
        "gated gelu": lambda: gate_product(bf16(64, 28672), "gelu_tanh"),
        "gather_pages": lambda: gather_pages(
            pool, page_ids, bf16(32, 100, 4, 2, 16, 128), layers=range(32), heads=range(4, 8)
        ),
        "scatter_pages": lambda: scatter_pages(
            pool, page_ids, bf16(32, 100, 8, 2, 16, 128), layers=range(32), heads=range(8)
        ),
        "fp8_linear 4096": lambda: fp8_linear(bf16(4096, 4096), fp8(6144, 4096)),
        "fp8_linear 4096 by block": lambda: fp8_linear(bf16(4096, 4096), fp8(28672, 4096, (128, 128))),
        "fp8_linear 128": lambda: fp8_linear(bf16(128, 4096), fp8(6144, 4096)),
    }
    for num_rows in (1, 64, 128):
        calls[f"int4_linear {num_rows}"] = partial(int4_linear, bf16(num_rows, 4096), int4(6144, 4096, 128))
    calls["int4_linear groups of 32"] = lambda: int4_linear(bf16(4, 4096), int4(6144, 4096, 32))
    norm_weight = bf16(4096)
    for name, num_rows, weight in (
        ("bf16", 1, bf16(28672, 4096)),
        ("bf16", 16, bf16(28672, 4096)),
        ("fp8", 1, fp8(28672, 4096)),
        ("fp8", 16, fp8(28672, 4096)),
        ("fp8 by block", 64, fp8(28672, 4096, (128, 128))),
    ):
        calls[f"decode_linear {name} {num_rows} gated"] = partial(
            decode_linear, bf16(num_rows, 4096), weight, norm_weight=norm_weight, eps=1e-5, gated=True
        )
    gated = partial(decode_linear, weight=bf16(28672, 4096), norm_weight=norm_weight, eps=1e-5, gated=True)
    calls[f"decode_linear bf16 9 gated{NOTHING_NEW}"] = partial(gated, bf16(9, 4096))
    calls["decode_linear bf16 16 gelu"] = partial(gated, bf16(16, 4096), gate="gelu_tanh")
    split = DecodeLinearConfig(
        block_rows=16, block_outputs=16, block_inputs=256, num_splits=2, num_warps=4, num_stages=3
    )
    calls["decode_linear bf16 1 gated by splits"] = partial(gated, bf16(1, 4096), config=split)
    for name, num_rows, weight in (
        ("bf16", 4, bf16(4096, 14336)),
        ("fp8", 64, fp8(4096, 14336)),
        ("fp8 by block", 1, fp8(4096, 14336, (128, 128))),
    ):
        calls[f"decode_linear {name} {num_rows}"] = partial(
            decode_linear, bf16(num_rows, 14336), weight, add_to=bf16(num_rows, 4096)
        )
    return calls
