"""Reads and writes the pages of a KV pool in device memory, for the transfer agent."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from slipstream.kv_transfer.api.page_layout import PageIds, PoolGeometry
from slipstream.kv_transfer.api.transport import Buffer
from slipstream.workers.engine.execution.gpu.gpu_inputs import Upload


class PageCopy(Protocol):
    """Copies pages of `pool` [layers, pages, kv_heads, ...] to and from a contiguous `buffer` on the same device, whose
    bytes are [layers, page_ids, heads, head run].
    `page_ids` is [n] int64. Implemented by `kernels.pages.gpu.page_copy`."""

    def gather_pages(self, pool: Tensor, page_ids: Tensor, buffer: Tensor, *, layers: range, heads: range) -> None: ...

    def scatter_pages(self, pool: Tensor, page_ids: Tensor, buffer: Tensor, *, layers: range, heads: range) -> None: ...


class TorchPageCopy:
    """`PageCopy` in plain torch, for any device."""

    def gather_pages(self, pool: Tensor, page_ids: Tensor, buffer: Tensor, *, layers: range, heads: range) -> None:
        picked = self._part(pool, layers, heads).index_select(1, page_ids)
        buffer.view(torch.uint8).view(picked.shape).copy_(picked)

    def scatter_pages(self, pool: Tensor, page_ids: Tensor, buffer: Tensor, *, layers: range, heads: range) -> None:
        part = self._part(pool, layers, heads)
        part.index_copy_(1, page_ids, buffer.view(torch.uint8).view(len(layers), len(page_ids), *part.shape[2:]))

    def _part(self, pool: Tensor, layers: range, heads: range) -> Tensor:
        for part, count in ((layers, pool.shape[0]), (heads, pool.shape[2])):
            if part.step != 1 or not 0 <= part.start < part.stop <= count:
                raise ValueError(f"{part} is not within 0 .. {count}")
        as_bytes = pool.flatten(3).view(torch.uint8)
        return as_bytes[layers.start : layers.stop, :, heads.start : heads.stop]


class DevicePagePool:
    """A `PagePool` over the tensor `kv`, `[layers, pages, kv_heads, ...]`, wherever it lives.

    On a GPU pages are copied on a stream of their own, beside the model:

        compute stream    layer 0 | layer 1 | layer 2 ...
                                  ^ layer_done(0) records an event
        copy stream               . gather(0) waits for it

    Only one thread copies. `gather` and `scatter`, which copy from and to host memory, return when the copy is done;
    `queue_gather` and `queue_scatter` only queue it on the device.
    """

    def __init__(self, kv: Tensor, copy: PageCopy | None = None) -> None:
        self.device = kv.device
        self._kv = kv
        self._geometry = PoolGeometry(*kv.flatten(3).view(torch.uint8).shape)
        self._copy: PageCopy = TorchPageCopy() if copy is None else copy
        self._stream = torch.cuda.Stream(kv.device) if kv.is_cuda else None  # type: ignore[no-untyped-call]
        self._computed: dict[int, torch.cuda.Event] = {}
        self._upload = Upload(kv.device, torch.int64)

    @property
    def geometry(self) -> PoolGeometry:
        return self._geometry

    def layer_done(self, layer: int) -> None:
        """Called by the thread that computes, after it has queued all work of the layer."""
        if self._stream is not None:
            self._computed[layer] = torch.cuda.current_stream(self.device).record_event()

    def gather(self, layer: int, page_ids: PageIds, heads: range, out: Buffer) -> None:
        with self.copying():
            picked = torch.empty(len(out), dtype=torch.uint8, device=self.device)
            self.queue_gather(layer, page_ids, heads, picked)
            torch.from_numpy(out).copy_(picked)

    def scatter(self, layer: int, page_ids: PageIds, heads: range, src: Buffer) -> None:
        with self.copying():
            done = self.queue_scatter(layer, page_ids, heads, torch.from_numpy(src).to(self.device))
        if done is not None:
            done.synchronize()

    def queue_gather(self, layer: int, page_ids: PageIds, heads: range, out: Tensor) -> torch.cuda.Event | None:
        """Like `gather`, but into memory of the device, which is filled after the returned event (None: at once)."""
        with self.copying():
            if self._stream is not None and layer in self._computed:
                self._stream.wait_event(self._computed[layer])
            ids = self._on_device(page_ids)
            self._copy.gather_pages(self._kv, ids, out, layers=range(layer, layer + 1), heads=heads)
            return None if self._stream is None else self._stream.record_event()

    def queue_scatter(self, layer: int, page_ids: PageIds, heads: range, src: Tensor) -> torch.cuda.Event | None:
        """Like `scatter`, but from memory of the device, which must stay until the returned event (None: it is
        done)."""
        with self.copying():
            if self._stream is not None:
                # The pages may have belonged to a sequence whose last step is still queued.
                self._stream.wait_stream(torch.cuda.default_stream(self.device))
            ids = self._on_device(page_ids)
            self._copy.scatter_pages(self._kv, ids, src, layers=range(layer, layer + 1), heads=heads)
            return None if self._stream is None else self._stream.record_event()

    def copying(self) -> AbstractContextManager[object]:
        """A context in which the copy stream is the current one. Memory that it copies to has to be allocated inside:
        memory that the model's stream has given back would be reused at once, while work that is still queued on that
        stream may yet write to it."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _on_device(self, page_ids: PageIds) -> Tensor:
        ids = torch.empty(len(page_ids), dtype=torch.int64, device=self.device)
        self._upload.begin(len(page_ids))[:] = page_ids
        self._upload.copy_to(ids)
        return ids
