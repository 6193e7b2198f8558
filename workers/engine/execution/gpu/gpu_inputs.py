"""Copies the arrays of a step from the host to the device, without waiting for the device.

Copies start from pinned memory, so they are queued like kernels. Memory must not be overwritten before a queued copy
has read it, so each `Upload` waits for its last copy, which in practice was finished long ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.kernels.attention.device_inputs import DeviceInputs
from slipstream.workers.models.interface.step_arrays import Int32s, StepArrays

ALIGNED_INTS = 32  # 128 bytes: kernels are compiled for whether an address is a multiple of 16
PAD_SLOT = -1  # a padding row stores nothing
FIRST_SLOTS = 3  # rows of token ids, positions and lengths come before those of slots


class Upload:
    """Host memory from which copies to `device` start. It grows as needed."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._is_pinned = device.type == "cuda"
        self._host = torch.empty(0, dtype=dtype)
        self._copied = torch.cuda.Event() if self._is_pinned else None  # type: ignore[no-untyped-call]

    def begin(self, count: int) -> NDArray[Any]:
        """Memory for `count` numbers, to be filled and then sent with `copy_to`."""
        if self._copied is not None:
            self._copied.synchronize()
        if len(self._host) < count:
            size = 1 << (count - 1).bit_length()
            self._host = torch.empty(size, dtype=self._host.dtype, pin_memory=self._is_pinned)
        numbers: NDArray[Any] = self._host[:count].numpy()
        return numbers

    def copy_to(self, out: Tensor) -> None:
        """Queues a copy of the first numbers to `out`, which is contiguous."""
        out.view(-1).copy_(self._host[: out.numel()], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


@dataclass(frozen=True, slots=True)
class DeviceStep:
    token_ids: Tensor  # [tokens] int32
    sample_rows: Tensor  # [n] int32
    inputs: tuple[DeviceInputs, ...]  # by page group


class StepUpload:
    """Brings whole steps, of any shape, to the device in one copy each."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._upload = Upload(device, torch.int32)

    def send(self, arrays: StepArrays) -> DeviceStep:
        fields = (
            arrays.token_ids,
            arrays.positions,
            arrays.slots,
            arrays.query_starts,
            arrays.kv_lens,
            arrays.page_table,
            arrays.sample_rows,
            *(field for group in arrays.groups for field in (group.slots, group.page_table)),
        )
        starts = np.cumsum([0, *(-(-field.size // ALIGNED_INTS) * ALIGNED_INTS for field in fields)]).tolist()
        host = self._upload.begin(starts[-1])
        for field, start in zip(fields, starts, strict=False):
            host[start : start + field.size].reshape(field.shape)[...] = field
        flat = torch.empty(starts[-1], dtype=torch.int32, device=self._device)
        self._upload.copy_to(flat)
        token_ids, positions, slots, query_starts, kv_lens, page_table, sample_rows, *more = (
            flat[start : start + field.size].view(field.shape) for field, start in zip(fields, starts, strict=False)
        )
        query_lens = np.diff(arrays.query_starts)
        num_decodes, max_query_len = num_leading_ones(query_lens), int(query_lens.max())
        max_kv_len = int(arrays.kv_lens.max())
        inputs = tuple(
            DeviceInputs(
                positions,
                of_group,
                query_starts,
                kv_lens,
                table,
                num_decodes=num_decodes,
                max_query_len=max_query_len,
                max_kv_len=max_kv_len,
            )
            for of_group, table in zip((slots, *more[::2]), (page_table, *more[1::2]), strict=True)
        )
        return DeviceStep(token_ids, sample_rows, inputs)


class DecodeInputs:
    """The memory that recorded decode steps read: one row per sequence, at the same addresses in every step.

    Of the page table, which hardly changes from one step to the next, only what differs is sent.
    """

    def __init__(self, max_seqs: int, max_pages: int, device: torch.device, num_groups: int = 1) -> None:
        rows = -(-max_seqs // ALIGNED_INTS) * ALIGNED_INTS
        self._rows = torch.zeros(FIRST_SLOTS + num_groups, rows, dtype=torch.int32, device=device)
        self._upload = Upload(device, torch.int32)
        self._page_tables = torch.zeros(num_groups, max_seqs, max_pages, dtype=torch.int32, device=device)
        self._known_tables = np.zeros((num_groups, max_seqs, max_pages), np.int32)  # what `_page_tables` hold
        self._changes = Upload(device, torch.int64)
        self._query_starts = torch.arange(max_seqs + 1, dtype=torch.int32, device=device)
        self._device = device
        self._rows[FIRST_SLOTS:] = PAD_SLOT

    @property
    def max_pages(self) -> int:
        return self._page_tables.shape[2]

    def token_ids(self, num_rows: int) -> Tensor:
        """[rows] int32"""
        return self._rows[0, :num_rows]

    def inputs(self, num_rows: int, max_kv_len: int) -> tuple[DeviceInputs, ...]:
        """The first rows, as a step of sequences no longer than `max_kv_len`; by page group."""
        _, positions, kv_lens, *slots = self._rows[:, :num_rows]
        starts = self._query_starts[: num_rows + 1]
        return tuple(
            DeviceInputs(positions, of_group, starts, kv_lens, table[:num_rows], num_rows, 1, max_kv_len)
            for of_group, table in zip(slots, self._page_tables, strict=True)
        )

    def load(self, arrays: StepArrays, num_rows: int) -> None:
        """Queues the copy of a step in which every sequence has one token, padded to `num_rows`.

        A padding row is token 0 of a sequence without keys: it attends to nothing and stores nothing.
        """
        num_seqs, width = arrays.num_seqs, self._rows.shape[1]
        host = self._upload.begin(self._rows.numel()).reshape(-1, width)
        slots = (arrays.slots, *(group.slots for group in arrays.groups))
        for row, field in zip(host, (arrays.token_ids, arrays.positions, arrays.kv_lens, *slots), strict=True):
            row[:num_seqs] = field
        host[:FIRST_SLOTS, num_seqs:num_rows] = 0
        host[FIRST_SLOTS:, num_seqs:num_rows] = PAD_SLOT
        self._upload.copy_to(self._rows)
        for number, page_table in enumerate((arrays.page_table, *(group.page_table for group in arrays.groups))):
            self._load_pages(number, page_table)

    def _load_pages(self, group: int, page_table: Int32s) -> None:
        num_seqs, num_pages = page_table.shape
        known = self._known_tables[group, :num_seqs, :num_pages]
        rows, columns = np.nonzero(known != page_table)
        count = len(rows)
        if not count:
            return
        changed = page_table[rows, columns]
        known[rows, columns] = changed
        host = self._changes.begin(2 * count)
        host[:count] = rows * self.max_pages + columns
        host[count:] = changed
        sent = torch.empty(2, count, dtype=torch.int64, device=self._device)
        self._changes.copy_to(sent)
        self._page_tables[group].view(-1).index_copy_(0, sent[0], sent[1].to(torch.int32))


def num_leading_ones(query_lens: NDArray[np.integer]) -> int:
    """How many sequences at the beginning have exactly one query."""
    longer = np.flatnonzero(query_lens != 1)
    return int(longer[0]) if len(longer) else len(query_lens)
