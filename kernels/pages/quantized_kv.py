"""Keys and values in eight bits: a scale for each token and head, kept in the page.

A quantised pool is `[layers, pages, kv_heads, head_bytes]`. Its dtype, int8 or float8_e4m3fn, says what the codes are;
the pages' owner and the transfer see the same memory as uint8. A head of a page is one run of bytes:

    K codes [page_tokens, head_dim] | V codes [page_tokens, head_dim] | K scales [page_tokens] | V scales [page_tokens]
                                                                         float32

    value = code * scale        scale = largest magnitude of the token's head / largest code
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_CODE = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SMALLEST_MAGNITUDE = 1e-30  # what is smaller becomes zero; its scale is still a normal float32
SCALE_BYTES = 4


def is_quantized(kv: Tensor) -> bool:
    return kv.dtype in LARGEST_CODE


def head_bytes(page_tokens: int, head_dim: int) -> int:
    """Size of a head of a page, its keys and values."""
    return 2 * page_tokens * (head_dim + SCALE_BYTES)


def page_tokens_of(kv: Tensor, head_dim: int) -> int:
    """Tokens of a page, of a pool or a layer in either form.

    Raises ValueError if a quantised head of a page is no whole number of tokens.
    """
    if not is_quantized(kv):
        return kv.shape[-2]
    page_tokens, rest = divmod(kv.shape[-1], head_bytes(1, head_dim))
    if rest:
        raise ValueError(f"kv: {kv.shape[-1]} bytes a head are no whole number of tokens with head_dim {head_dim}")
    return page_tokens


def quantize_kv(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`x` [..., head_dim] as (codes [..., head_dim] in `dtype`, float32 scales [...]), rounded to the nearest even."""
    largest = LARGEST_CODE[dtype]
    numbers = x.float()
    scales = numbers.abs().amax(-1).clamp_min(SMALLEST_MAGNITUDE) / largest
    codes = (numbers / scales[..., None]).clamp(-largest, largest)
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales


def dequantize_kv(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., head_dim] in `dtype`; the product is taken in float32."""
    return (codes.float() * scales[..., None]).to(dtype)


def codes_and_scales(kv_layer: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Views of a layer [pages, kv_heads, head_bytes], or of any [..., head_bytes]:
    (codes [..., 2, page_tokens, head_dim], scales [..., 2, page_tokens]), keys first."""
    page_tokens = page_tokens_of(kv_layer, head_dim)
    num_codes = 2 * page_tokens * head_dim
    shape = kv_layer.shape[:-1]
    codes = kv_layer[..., :num_codes].view(*shape, 2, page_tokens, head_dim)
    scales = kv_layer.view(torch.float32)[..., num_codes // SCALE_BYTES :].view(*shape, 2, page_tokens)
    return codes, scales


def write_quantized_kv(kv_layer: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Stores `keys` and `values`, [tokens, kv_heads, head_dim] each, at `slots` [tokens] of a layer's pages."""
    page_codes, page_scales = codes_and_scales(kv_layer, keys.shape[-1])
    page_tokens = page_codes.shape[-2]
    pages = torch.div(slots, page_tokens, rounding_mode="floor")
    offsets = slots - pages * page_tokens
    codes, scales = quantize_kv(torch.stack((keys, values), dim=2), kv_layer.dtype)  # [tokens, kv_heads, 2, head_dim]
    page_codes.view(torch.uint8)[pages, :, :, offsets] = codes.view(torch.uint8)
    page_scales[pages, :, :, offsets] = scales


def gather_quantized_kv(kv_layer: Tensor, heads: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Keys and values of `heads` [n] (page * kv_heads + head) of a quantised layer: [2, n, page_tokens, head_dim]."""
    runs = kv_layer.view(torch.uint8).view(-1, kv_layer.shape[-1]).index_select(0, heads)
    codes, scales = codes_and_scales(runs.view(kv_layer.dtype), head_dim)
    return dequantize_kv(codes, scales, dtype).transpose(0, 1)
