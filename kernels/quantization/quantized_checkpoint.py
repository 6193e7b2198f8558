"""Quantised weights as the libraries of the field store them, brought into the forms of `quantized_weight`.

    AutoAWQ (version gemm)   qweight [in, out / 8]   a word holds 8 outputs in the order 0 2 4 6 1 3 5 7
                             qzeros  [groups, out / 8], in the same order
                             scales  [groups, out]
    AutoGPTQ, GPTQModel      qweight [in / 8, out]   a word holds 8 inputs in order
                             qzeros  [groups, out / 8], outputs in order; version 1 stores zero - 1
                             scales  [groups, out]
                             g_idx   [in]            group of each input, where they were quantised by activation order
    fp8 (Hugging Face)       weight  [out, in] e4m3, weight_scale_inv [ceil(out / 128), ceil(in / 128)], or one for all
    compressed-tensors       weight  [out, in] e4m3, weight_scale [out, 1], [block rows, block columns], or one for all

The scales multiply in all of them, `weight_scale_inv` too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.kernels.quantization.quantized_weight import (
    CODES_PER_WORD,
    INT4_MAX,
    Fp8Weight,
    Int4Weight,
    pack_codes,
    unpack_codes,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def int4_from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Int4Weight:
    """Raises ValueError where the shapes do not belong together."""
    num_inputs, num_outputs = qweight.shape[0], qweight.shape[1] * CODES_PER_WORD
    _check_groups(qzeros, scales, num_inputs, num_outputs)
    codes = unpack_codes(qweight, AWQ_ORDER)
    return Int4Weight(pack_codes(codes.t()), scales.t().contiguous(), unpack_codes(qzeros, AWQ_ORDER).t().contiguous())


def int4_from_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None = None, *, zeros_minus_one: bool = True
) -> Int4Weight:
    """`zeros_minus_one` says how the checkpoint format stores zeros: AutoGPTQ's (`gptq`) less one, `gptq_v2` as they
    are. Raises ValueError where the shapes do not belong together or where `g_idx` makes groups of different sizes."""
    num_inputs, num_outputs = qweight.shape[0] * CODES_PER_WORD, qweight.shape[1]
    _check_groups(qzeros, scales, num_inputs, num_outputs)
    zeros = unpack_codes(qzeros).t().contiguous()
    if zeros_minus_one:
        zeros = (zeros + 1) & INT4_MAX  # a zero of 0 was stored as 15
    words, perm = qweight.t().contiguous(), None
    if g_idx is not None:
        if g_idx.shape != (num_inputs,):
            raise ValueError(f"g_idx must be [{num_inputs}], got {list(g_idx.shape)}")
        num_groups = scales.shape[0]
        by_position = torch.arange(num_inputs, device=g_idx.device) // (num_inputs // num_groups)
        if not torch.equal(g_idx.long(), by_position):
            sorted_groups, order = g_idx.long().sort(stable=True)
            if not torch.equal(sorted_groups, by_position):
                raise ValueError(f"g_idx must name each of {num_groups} groups equally often")
            perm = order.to(torch.int32)
            words = pack_codes(unpack_codes(words)[:, order])
    return Int4Weight(words, scales.t().contiguous(), zeros, perm)


def fp8_from_scaled(codes: Tensor, scales: Tensor, block: tuple[int, int] | None = None) -> Fp8Weight:
    """`scales` is one number, [out], [out, 1], or [block rows, block columns] of `block`; anything else is a
    ValueError."""
    num_outputs, num_inputs = codes.shape
    wide = scales.float()
    if block is None:
        if wide.numel() not in (1, num_outputs):
            raise ValueError(f"scales must be one or {num_outputs} without a block size, got {list(scales.shape)}")
        return Fp8Weight(codes, wide.reshape(-1, 1).expand(num_outputs, 1).contiguous(), (1, num_inputs))
    return Fp8Weight(codes, wide.contiguous(), block)


def _check_groups(qzeros: Tensor, scales: Tensor, num_inputs: int, num_outputs: int) -> None:
    num_groups = scales.shape[0]
    if scales.dim() != 2 or not num_groups or scales.shape[1] != num_outputs or num_inputs % num_groups:
        raise ValueError(
            f"scales must be [groups, {num_outputs}] with groups dividing {num_inputs}, got {list(scales.shape)}"
        )
    if qzeros.shape != (num_groups, num_outputs // CODES_PER_WORD) or num_outputs % CODES_PER_WORD:
        raise ValueError(f"qzeros must be [{num_groups}, {num_outputs} / {CODES_PER_WORD}], got {list(qzeros.shape)}")
