"""Reading pages out of a rank's KV pool and writing them into it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from slipstream.kv_transfer.layout import PoolGeometry
from slipstream.kv_transfer.transport import Buffer

PageIds = npt.NDArray[np.intp]


class PagePool(Protocol):
    """Called from the transport thread, for pages that the caller of the agent has set aside for the transfer."""

    @property
    def geometry(self) -> PoolGeometry: ...

    def gather(self, layer: int, page_ids: PageIds, heads: range, out: Buffer) -> None:
        """Copy the heads of the pages to `out`, as bytes `[len(page_ids), len(heads), head_bytes]`."""

    def scatter(self, layer: int, page_ids: PageIds, heads: range, src: Buffer) -> None:
        """The inverse of `gather`."""


class HostPagePool:
    """A pool in host memory: `array` is the bytes of the pool, uint8 `[layers, pages, heads of the rank, head_bytes]`,
    C-contiguous and shared with the engine (of a torch tensor:
    `tensor.view(torch.uint8).numpy().reshape(layers, pages, heads, -1)`). Raises ValueError for any other array.

    A stream's heads are an equal share of the rank's heads, so its part of a page is a row of the table
    `[pages * shares, share_bytes]`. numpy copies such rows at memory speed in both directions; torch's
    `index_copy_` reaches a tenth of it.
    """

    def __init__(self, array: npt.NDArray[np.uint8]) -> None:
        if array.dtype != np.uint8 or array.ndim != 4 or not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError(
                f"the pool must be writable contiguous uint8 [layers, pages, heads, head_bytes], "
                f"got {array.dtype} {array.shape}"
            )
        self._array = array
        self._geometry = PoolGeometry(*array.shape)

    @property
    def geometry(self) -> PoolGeometry:
        return self._geometry

    def gather(self, layer: int, page_ids: PageIds, heads: range, out: Buffer) -> None:
        table, rows = self._rows(layer, page_ids, heads)
        np.take(table, rows, axis=0, out=out.reshape(len(rows), -1), mode="clip")

    def scatter(self, layer: int, page_ids: PageIds, heads: range, src: Buffer) -> None:
        table, rows = self._rows(layer, page_ids, heads)
        table[rows] = src.reshape(len(rows), -1)

    def _rows(self, layer: int, page_ids: PageIds, heads: range) -> tuple[npt.NDArray[np.uint8], PageIds]:
        geometry = self._geometry
        num_shares, rest = divmod(geometry.num_heads, len(heads))
        if rest or heads.start % len(heads):
            raise ValueError(f"{heads} is no equal share of {geometry.num_heads} heads")
        table = self._array[layer].reshape(geometry.num_pages * num_shares, len(heads) * geometry.head_bytes)
        return table, page_ids * num_shares + heads.start // len(heads)
