"""Launches of copies from pool to pool, in shapes of production, on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from slipstream.kernels.pages.gpu.page_pull import pull_pages


def launches() -> dict[str, Callable[[], object]]:
    pool = torch.empty(32, 512, 8, 2, 16, 128, dtype=torch.bfloat16, device="meta")
    ids = torch.empty(256, dtype=torch.int64, device="meta")
    layers = range(32)
    return {
        "page_pull": partial(pull_pages, pool, ids, pool, ids, layers=layers, source_heads=range(8), heads=range(8)),
        "page_pull of half the heads": partial(
            pull_pages, pool, ids.int(), pool, ids.int(), layers=layers, source_heads=range(4), heads=range(4, 8)
        ),
    }
