"""Reading and writing the pages of a KV pool in device memory, for the transfer agent."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from slipstream.kv_transfer.layout import PoolGeometry
from slipstream.kv_transfer.pool import PageIds
from slipstream.kv_transfer.transport import Buffer


class DevicePagePool:
    """A `PagePool` over the tensor `kv`, `[layers, pages, kv_heads, 2, page_tokens, head_dim]`, wherever it lives.

    On a GPU pages are copied on a stream of their own, beside the model:

        compute stream    layer 0 | layer 1 | layer 2 ...
                                  ^ layer_done(0) records an event
        copy stream               . gather(0) waits for it

    Both copies have ended when the call returns. As in `HostPagePool`, a stream's heads of a page are one row of a
    table; rows are moved in words of eight bytes where their size allows.
    """

    def __init__(self, kv: Tensor) -> None:
        as_bytes = kv.view(torch.uint8).flatten(3)
        self._geometry = PoolGeometry(*as_bytes.shape)
        words = torch.int64 if self._geometry.head_bytes % 8 == 0 else torch.uint8
        self._kv = as_bytes.view(words)
        self._stream = torch.cuda.Stream(kv.device) if kv.is_cuda else None  # type: ignore[no-untyped-call]
        self._computed: dict[int, torch.cuda.Event] = {}

    @property
    def geometry(self) -> PoolGeometry:
        return self._geometry

    def layer_done(self, layer: int) -> None:
        """Called by the thread that computes, after it has queued all work of the layer."""
        if self._stream is not None:
            self._computed[layer] = torch.cuda.current_stream(self._kv.device).record_event()

    def gather(self, layer: int, page_ids: PageIds, heads: range, out: Buffer) -> None:
        table, rows = self._rows(layer, page_ids, heads)
        with self._copying():
            if self._stream is not None and layer in self._computed:
                self._stream.wait_event(self._computed[layer])
            picked = table.index_select(0, rows.to(table.device))
            torch.from_numpy(out).view(table.dtype).view_as(picked).copy_(picked)

    def scatter(self, layer: int, page_ids: PageIds, heads: range, src: Buffer) -> None:
        table, rows = self._rows(layer, page_ids, heads)
        with self._copying():
            if self._stream is not None:
                # The pages may have belonged to a sequence whose last step is still queued.
                self._stream.wait_stream(torch.cuda.default_stream(self._kv.device))
            values = torch.from_numpy(src).view(table.dtype).view(len(rows), -1)
            table.index_copy_(0, rows.to(table.device), values.to(table.device))
            if self._stream is not None:
                self._stream.synchronize()

    def _copying(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _rows(self, layer: int, page_ids: PageIds, heads: range) -> tuple[Tensor, Tensor]:
        """The table of this share of heads, `[pages * shares, words]`, and the rows that hold the pages."""
        geometry = self._geometry
        num_shares, rest = divmod(geometry.num_heads, len(heads))
        if rest or heads.start % len(heads):
            raise ValueError(f"{heads} is no equal share of {geometry.num_heads} heads")
        table = self._kv[layer].reshape(geometry.num_pages * num_shares, -1)
        return table, torch.from_numpy(page_ids * num_shares + heads.start // len(heads))
