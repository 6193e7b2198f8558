"""Sequences in scattered pages, and what attention over them must give."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.pages.quantized_kv import (
    LARGEST_CODE,
    dequantize_kv,
    head_bytes,
    quantize_kv,
    write_quantized_kv,
)

# Of the norm of the difference over the norm of the result.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
NAN_BYTE = 0x7F  # nan as fp8; four of them, or two, are nan in every other type


@dataclass
class PagedSequences:
    """Sequences of random keys and values. All else in the layer is nan: free pages, what lies behind a sequence's
    last token, and page 0, where the page table points behind a sequence's last page."""

    query_lens: list[int]
    kv_lens: list[int]
    heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        num_pages = [-(-n // self.page_tokens) for n in self.kv_lens]
        page_ids = 1 + torch.randperm(sum(num_pages) + 3)
        self.page_table = torch.zeros(len(num_pages), max(num_pages) + 2, dtype=torch.int32)
        self.layer = self._poisoned_layer(len(page_ids) + 1)
        self.keys, self.values, self.queries = [], [], []
        first = 0
        for row, kv_len, query_len, pages in zip(
            self.page_table, self.kv_lens, self.query_lens, num_pages, strict=True
        ):
            row[:pages] = page_ids[first : first + pages]
            first += pages
            self.queries.append(torch.randn(query_len, self.heads, self.head_dim).to(self.dtype))
            keys, values = torch.randn(2, kv_len, self.kv_heads, self.head_dim).to(self.dtype)
            positions = torch.arange(kv_len)
            self._store(keys, values, row[positions // self.page_tokens].long(), positions % self.page_tokens)
        self.q = torch.cat(self.queries).to(self.device)
        self.layer = self.layer.to(self.device)
        self.page_table = self.page_table.to(self.device)
        self.kv_len_tensor = torch.tensor(self.kv_lens, dtype=torch.int32, device=self.device)
        starts = torch.tensor([0, *self.query_lens]).cumsum(0)
        self.query_starts = starts.to(torch.int32).to(self.device)

    def expected(
        self, scale: float, window: int | None, softcap: float | None = None, sinks: Tensor | None = None
    ) -> Tensor:
        """[tokens, heads, head_dim] in float64."""
        results = []
        shared = self.heads // self.kv_heads
        for queries, keys, values in zip(self.queries, self.keys, self.values, strict=True):
            k = keys.double().repeat_interleave(shared, dim=1)
            v = values.double().repeat_interleave(shared, dim=1)
            scores = torch.einsum("qhd,khd->hqk", queries.double(), k) * scale
            if softcap is not None:
                scores = softcap * (scores / softcap).tanh()
            distance = len(keys) - len(queries) + torch.arange(len(queries))[:, None] - torch.arange(len(keys))
            seen = (distance >= 0) & (distance < (window or len(keys) + 1))
            scores = scores.masked_fill(~seen, float("-inf"))
            if sinks is not None:
                more = sinks.cpu().double()[:, None, None].expand(-1, len(queries), 1)
                scores = torch.cat((scores, more), dim=-1)
            weights = torch.softmax(scores, dim=-1)[..., : len(keys)]
            results.append(torch.einsum("hqk,khd->qhd", weights, v) if len(keys) else torch.zeros(queries.shape))
        return torch.cat([result.double() for result in results])

    def _poisoned_layer(self, num_pages: int) -> Tensor:
        if self.kv_dtype in LARGEST_CODE:
            run = head_bytes(self.page_tokens, self.head_dim)
            return torch.full((num_pages, self.kv_heads, run), NAN_BYTE, dtype=torch.uint8).view(self.kv_dtype)
        shape = (num_pages, self.kv_heads, 2, self.page_tokens, self.head_dim)
        return torch.full(shape, float("nan"), dtype=self.dtype)

    def _store(self, keys: Tensor, values: Tensor, pages: Tensor, offsets: Tensor) -> None:
        if self.kv_dtype is None:
            self.layer[pages, :, 0, offsets] = keys
            self.layer[pages, :, 1, offsets] = values
        else:
            write_quantized_kv(self.layer, keys, values, pages * self.page_tokens + offsets)
            keys, values = (dequantize_kv(*quantize_kv(x, self.kv_dtype), torch.float32) for x in (keys, values))
        self.keys.append(keys)
        self.values.append(values)


def assert_close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Row by row, so that a wrong head does not drown in the others; nan is never close."""
    error = (got.double().cpu() - expected).norm(dim=-1)
    size = expected.norm(dim=-1)
    # A row in which values cancel is small beside its parts, of about one each.
    assert got.dtype == dtype
    assert (error <= TOLERANCE[dtype] * size.clamp_min(0.1 * expected.shape[-1] ** 0.5)).all(), (error / size).max()
