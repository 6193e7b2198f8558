"""Writing keys and values into pages.

A layer of the pool is [pages, kv_heads, 2, page_tokens, head_dim]. Seen flat, as rows of head_dim, K and V of one
head of one page are two neighbouring runs of page_tokens rows:

    page p, head h:   | K 0 .. K page_tokens-1 | V 0 .. V page_tokens-1 |
                      ^ row (p * kv_heads + h) * 2 * page_tokens
"""

from __future__ import annotations

import torch
from torch import Tensor


def kv_rows(slots: Tensor, num_kv_heads: int, page_tokens: int) -> Tensor:
    """The flat rows that `write_kv` writes, the same for all layers of a step.

    `slots` is [tokens] (page * page_tokens + offset). Returns [2, tokens, kv_heads], keys first.
    """
    pages = torch.div(slots, page_tokens, rounding_mode="floor")
    heads = torch.arange(num_kv_heads, device=slots.device)
    key_rows = ((pages[:, None] * num_kv_heads + heads) * 2) * page_tokens + (slots - pages * page_tokens)[:, None]
    return torch.stack((key_rows, key_rows + page_tokens))


def write_kv(kv_layer: Tensor, keys: Tensor, values: Tensor, rows: Tensor) -> None:
    """Stores `keys` and `values`, [tokens, kv_heads, head_dim] each, at `rows` (see `kv_rows`) of a layer's pages."""
    flat = kv_layer.view(-1, kv_layer.shape[-1])
    flat[rows[0]] = keys
    flat[rows[1]] = values
