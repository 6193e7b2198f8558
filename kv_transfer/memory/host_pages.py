"""Reads pages from a rank's KV pool and writes pages into it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from slipstream.kv_transfer.api.page_layout import PageIds, PoolGeometry
from slipstream.kv_transfer.api.transport import Buffer
from slipstream.kv_transfer.memory.pool_memory import PoolMemory
from slipstream.kv_transfer.memory.row_copy import MIN_BYTES, CopyRows, RowCopy, RowTable, copy_rows, native_copy_rows


class TransferPool(Protocol):
    """A KV pool, as the transport thread uses it, for pages that the agent's caller has set aside for a transfer."""

    @property
    def geometry(self) -> PoolGeometry: ...

    def gather(self, layer: int, page_ids: PageIds, heads: range, out: Buffer) -> None:
        """Copy the heads of the pages to `out`, as bytes `[len(page_ids), len(heads), head_bytes]`."""

    def scatter(self, layer: int, page_ids: PageIds, heads: range, src: Buffer) -> None:
        """The inverse of `gather`."""


class HostPages:
    """Pages in host memory, to read: `array` is uint8 `[layers, pages, heads of the rank, head_bytes]`, C-contiguous.

    `copy` is the native copy; without it numpy copies rows of `[pages * shares, share_bytes]` (a stream's heads are an
    equal share of the rank's heads). Checksums are XXH3-64 of the bytes as `gather` lays them out.
    Raises ValueError for any other array.
    """

    def __init__(self, array: npt.NDArray[np.uint8], copy: CopyRows | None = None) -> None:
        if array.dtype != np.uint8 or array.ndim != 4 or not array.flags.c_contiguous:
            raise ValueError(
                f"the pool must be contiguous uint8 [layers, pages, heads, head_bytes], got {array.dtype} {array.shape}"
            )
        self._array = array
        self._geometry = PoolGeometry(*array.shape)
        self.copy = copy if copy is not None else native_copy_rows()
        self._address = int(array.ctypes.data)
        self._tables: dict[tuple[int, int, int, int], RowTable] = {}  # cached by layer and stream

    @property
    def geometry(self) -> PoolGeometry:
        return self._geometry

    def gather(self, layer: int, page_ids: PageIds, heads: range, out: Buffer) -> None:
        table, rows = self._rows(layer, page_ids, heads)
        np.take(table, rows, axis=0, out=out.reshape(len(rows), -1), mode="clip")

    def gather_summed(self, layer: int, page_ids: PageIds, heads: range, out: Buffer, seed: int) -> int:
        """Like `gather`; returns the checksum of the bytes."""
        if self.copy is None or len(out) < MIN_BYTES:
            self.gather(layer, page_ids, heads, out)
            return xxhash.xxh3_64_intdigest(out.data, seed=seed)
        table = self.table(layer, heads)
        to = RowTable.of_buffer(out, table.row_bytes)
        [checksum] = copy_rows(self.copy, [RowCopy(to, None, table, page_ids, len(page_ids), seed)])
        assert checksum is not None, "page ids are checked where they come in"
        return checksum

    def rows(self, layer: int, num_layers: int, page_ids: PageIds, heads: range) -> tuple[RowTable, PageIds]:
        """A table with these heads of all pages, one layer after the other, and the numbers of the wanted rows in
        it."""
        table = self.table(layer, heads, num_layers)
        if num_layers == 1:
            return table, page_ids
        return table, (page_ids + self._geometry.num_pages * np.arange(num_layers)[:, None]).reshape(-1)

    def table(self, layer: int, heads: range, num_layers: int = 1) -> RowTable:
        """A table with these heads of all pages of so many layers."""
        key = layer, num_layers, heads.start, heads.stop
        if (table := self._tables.get(key)) is None:
            geometry = self._geometry
            first = layer * geometry.num_pages * geometry.page_bytes + heads.start * geometry.head_bytes
            row_bytes = len(heads) * geometry.head_bytes
            num_rows = num_layers * geometry.num_pages
            table = RowTable(self._array, self._address + first, num_rows, row_bytes, geometry.page_bytes)
            self._tables[key] = table
        return table

    def _rows(self, layer: int, page_ids: PageIds, heads: range) -> tuple[npt.NDArray[np.uint8], PageIds]:
        geometry = self._geometry
        num_shares, rest = divmod(geometry.num_heads, len(heads))
        if rest or heads.start % len(heads):
            raise ValueError(f"{heads} is no equal share of {geometry.num_heads} heads")
        table = self._array[layer].reshape(geometry.num_pages * num_shares, len(heads) * geometry.head_bytes)
        return table, page_ids * num_shares + heads.start // len(heads)


class HostPagePool(HostPages):
    """A rank's pool in host memory, shared with the engine (of a torch tensor:
    `tensor.view(torch.uint8).numpy().reshape(layers, pages, heads, -1)`).

    `memory` is what the array fills, if other processes may be given a view of it. Raises ValueError like `HostPages`,
    and for an array that cannot be written.
    """

    def __init__(
        self, array: npt.NDArray[np.uint8], memory: PoolMemory | None = None, copy: CopyRows | None = None
    ) -> None:
        super().__init__(array, copy)
        if not array.flags.writeable:
            raise ValueError("the pool must be writable")
        self.memory = memory

    def scatter(self, layer: int, page_ids: PageIds, heads: range, src: Buffer) -> None:
        table, rows = self._rows(layer, page_ids, heads)
        table[rows] = src.reshape(len(rows), -1)

    def scatter_summed(self, layer: int, page_ids: PageIds, heads: range, src: Buffer, seed: int) -> int:
        """Like `scatter`; returns the checksum of the bytes."""
        if self.copy is None or len(src) < MIN_BYTES:
            self.scatter(layer, page_ids, heads, src)
            return xxhash.xxh3_64_intdigest(src.data, seed=seed)
        table = self.table(layer, heads)
        source = RowTable.of_buffer(src, table.row_bytes)
        [checksum] = copy_rows(self.copy, [RowCopy(table, page_ids, source, None, len(page_ids), seed, True)])
        assert checksum is not None, "page ids are checked where they come in"
        return checksum
