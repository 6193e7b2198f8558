"""Sequences of random keys and values in scattered pages, for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.kernels.pages.quantized_kv import LARGEST_CODE, SCALE_BYTES, codes_and_scales, head_bytes


def random_pages(
    kv_lens: Sequence[int], kv_heads: int, head_dim: int, page_tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """(layer, page_table [seqs, max_pages], kv_lens [seqs]): every page belongs to a sequence, in random order."""
    lens = torch.tensor(kv_lens, dtype=torch.int32)
    num_pages = (lens + page_tokens - 1) // page_tokens
    page_table = torch.zeros(len(kv_lens), int(num_pages.max()), dtype=torch.int32)
    owned = torch.arange(page_table.shape[1]) < num_pages[:, None]
    total = int(num_pages.sum())
    page_table[owned] = torch.randperm(total).to(torch.int32)
    shape = (total, kv_heads, 2, page_tokens, head_dim)
    if dtype not in LARGEST_CODE:
        return torch.randn(shape, dtype=dtype, device=device), page_table.to(device), lens.to(device)
    layer = torch.empty(*shape[:2], head_bytes(page_tokens, head_dim), dtype=dtype, device=device)
    codes, scales = codes_and_scales(layer, head_dim)
    codes.copy_((torch.randn(shape, dtype=torch.bfloat16, device=device) * 32).clamp(-127, 127))
    scales.uniform_(0.01, 0.05)
    return layer, page_table.to(device), lens.to(device)


def kv_bytes(kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Of the keys and values of one token in one layer."""
    return 2 * kv_heads * (head_dim * dtype.itemsize + (SCALE_BYTES if dtype in LARGEST_CODE else 0))
