"""Paged attention of the native library on plain tensors, for models that are computed op by op.

    attention = NativeAttention(library, form, num_heads=8, scale=0.125, window=None)    for all layers that are alike
    attention.begin_step(query_starts, kv_lens, page_table, slots)                       once a step
    for layer:  attention.write(keys, values, pages)                                     as they are: no rotary, no norm
                attended = attention.attend(q, pages)

A step is a flat batch of several sequences, prompt chunks and single tokens mixed (see `StepArrays`). A row's result
does not depend, in one bit, on the rows beside it. Objects are for one thread at a time. A call takes a few
microseconds beside its work.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.kernels.cpu.c_interface import AttentionShape, KvFormat, KvShape, Scalar
from slipstream.kernels.pages.quantized_kv import SCALE_BYTES

TYPES = {torch.float32: Scalar.F32, torch.bfloat16: Scalar.BF16}
FORMATS = {None: KvFormat.MODEL, torch.int8: KvFormat.INT8, torch.float8_e4m3fn: KvFormat.FP8}
MAX_HEAD_DIM = 512
WIDTH_STEP = 8  # numbers

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PageForm:
    """Where a layer has keys and values: [pages, units, heads of the unit, keys page_tokens * key_dim | values
    page_tokens * value_dim], or codes and scales as in `quantized_kv`.

    `unit_bytes` are those from one unit to the next and `page_bytes` those from one page to the next; None: there are
    no gaps. Raises ValueError if the kernels cannot read it.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    page_tokens: int
    dtype: torch.dtype  # of queries, keys, values and results
    codes: torch.dtype | None = None  # of pages; None: `dtype`
    unit_heads: int = 1
    unit_bytes: int | None = None
    page_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, width in (("key_dim", self.key_dim), ("value_dim", self.value_dim)):
            if not 0 < width <= MAX_HEAD_DIM or width % WIDTH_STEP:
                raise ValueError(f"{name}: must be a multiple of {WIDTH_STEP} up to {MAX_HEAD_DIM}, got {width}")
        if self.dtype not in TYPES or self.codes not in FORMATS:
            raise ValueError(f"dtype: pages of {self.codes or self.dtype} with {self.dtype} are not supported")
        if self.page_tokens < 1 or self.unit_heads < 1 or self.num_kv_heads % self.unit_heads:
            raise ValueError(f"{self.num_kv_heads} KV heads in units of {self.unit_heads}, {self.page_tokens} tokens")
        if self.unit_stride < self.unit_heads * self.head_bytes:
            raise ValueError(f"unit_bytes: {self.unit_bytes} are fewer than the unit has")
        if self.page_stride < self.num_kv_heads // self.unit_heads * self.unit_stride:
            raise ValueError(f"page_bytes: {self.page_bytes} are fewer than the page has")

    @property
    def head_bytes(self) -> int:
        """Of a head in a page."""
        numbers = self.key_dim + self.value_dim
        if self.codes is None:
            return self.page_tokens * numbers * self.dtype.itemsize
        return self.page_tokens * (numbers + 2 * SCALE_BYTES)

    @property
    def unit_stride(self) -> int:
        return self.unit_heads * self.head_bytes if self.unit_bytes is None else self.unit_bytes

    @property
    def page_stride(self) -> int:
        return self.num_kv_heads // self.unit_heads * self.unit_stride if self.page_bytes is None else self.page_bytes

    @property
    def native(self) -> KvShape:
        return KvShape(
            self.num_kv_heads,
            self.key_dim,
            self.value_dim,
            self.page_tokens,
            FORMATS[self.codes],
            self.unit_heads,
            self.unit_stride,
            self.page_stride,
        )


class NativeAttention:
    """The layers of a model that have one form, scale, window and cap of scores.

    `window`: a query sees its own key and the `window - 1` before it. `chunk`: of these, only keys of its own run of
    `chunk` positions, as in Llama 4. `softcap`: scores are softcap * tanh(scale * q k^T / softcap). Raises ValueError.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        form: PageForm,
        *,
        num_heads: int,
        scale: float,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
    ) -> None:
        if num_heads < 1 or num_heads % form.num_kv_heads:
            raise ValueError(f"num_heads: {num_heads} cannot share {form.num_kv_heads} KV heads")
        for name, limit in (("window", window), ("chunk", chunk)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name}: {limit} sees nothing")
        if softcap is not None and softcap <= 0:
            raise ValueError(f"softcap: must be positive, got {softcap}")
        self.form = form
        self._num_heads = num_heads
        shape = AttentionShape(form.native, num_heads, window or 0, chunk or 0, scale, softcap or 0.0)
        self._run, self._store = library.slipstream_attention_run, library.slipstream_store_kv
        self._begin = library.slipstream_attention_begin
        self._handle = library.slipstream_attention_create(shape, TYPES[form.dtype])
        weakref.finalize(self, library.slipstream_attention_destroy, self._handle)
        self._num_tokens = 0
        self._slots = 0  # address
        self._step: tuple[Int32s, ...] = ()  # what the library reads from until the next step

    def begin_step(self, query_starts: Int32s, kv_lens: Int32s, page_table: Int32s, slots: Int32s) -> None:
        """The sequences of a step, as in `StepArrays`: `query_starts` [seqs + 1] rows, `kv_lens` [seqs] tokens up to
        and including this step, `page_table` [seqs, max_pages] whose rows may be further apart than they are long,
        `slots` [tokens]. All are C-contiguous int32, and must stay as they are until the step is over.

        Behind a sequence's last page and before its window, entries of the page table are not looked at.
        """
        self._num_tokens, self._step = len(slots), (query_starts, kv_lens, page_table, slots)
        self._slots = _address(slots)
        self._begin(
            self._handle,
            len(kv_lens),
            _address(query_starts),
            _address(kv_lens),
            _address(page_table),
            page_table.strides[0] // page_table.itemsize,
        )

    def write(self, keys: Tensor, values: Tensor, pages: Tensor) -> None:
        """Stores `keys` [tokens, kv_heads, key_dim] and `values` [tokens, kv_heads, value_dim] in the slots of the
        step. Tokens and heads may lie anywhere, the numbers of a head one behind the other. `pages` begins where the
        layer's first page does, whatever its dtype and shape. Raises ValueError."""
        form = self.form
        self._check("keys", keys, form.num_kv_heads, form.key_dim)
        self._check("values", values, form.num_kv_heads, form.value_dim)
        key_stride, key_head_stride, _ = keys.stride()
        value_stride, value_head_stride, _ = values.stride()
        self._store(
            self._handle,
            keys.data_ptr(),
            key_stride,
            key_head_stride,
            values.data_ptr(),
            value_stride,
            value_head_stride,
            self._slots,
            self._num_tokens,
            pages.data_ptr(),
        )

    def attend(self, q: Tensor, pages: Tensor, sinks: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        """Causal attention of `q` [tokens, heads, key_dim], laid out as `keys` may be, to what the sequences have in
        the layer's pages. `sinks` [heads] float32 are the scores of one more key of each head, whose value is zero.
        Returns `out`, [tokens, heads, value_dim] without gaps in a token. Raises ValueError."""
        form, heads = self.form, self._num_heads
        self._check("q", q, heads, form.key_dim)
        if sinks is not None and (sinks.dtype != torch.float32 or sinks.shape != (heads,) or sinks.stride(0) != 1):
            raise ValueError(f"sinks: must be [{heads}] in float32, got {list(sinks.shape)} in {sinks.dtype}")
        if out is None:
            out = q.new_empty((self._num_tokens, heads, form.value_dim))
        else:
            self._check("out", out, heads, form.value_dim)
            if out.stride(1) != form.value_dim:
                raise ValueError(f"out: must have heads one behind the other, got strides {out.stride()}")
        q_stride, q_head_stride, _ = q.stride()
        self._run(
            self._handle,
            q.data_ptr(),
            q_stride,
            q_head_stride,
            pages.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
            out.data_ptr(),
            out.stride(0),
        )
        return out

    def write_joined(self, qkv: Tensor, pages: Tensor) -> None:
        """`write` for keys and values in the rows of a joined projection: `qkv` [1, tokens, (heads + kv_heads) *
        key_dim + kv_heads * value_dim] without gaps in a row, queries first, then keys, then values."""
        form, stride = self.form, qkv.stride(1)
        self._check_joined(qkv)
        keys = qkv.data_ptr() + self._num_heads * form.key_dim * qkv.element_size()
        values = keys + form.num_kv_heads * form.key_dim * qkv.element_size()
        self._store(
            self._handle,
            keys,
            stride,
            form.key_dim,
            values,
            stride,
            form.value_dim,
            self._slots,
            self._num_tokens,
            pages.data_ptr(),
        )

    def attend_joined(self, qkv: Tensor, pages: Tensor, sinks: Tensor | None = None) -> Tensor:
        """`attend` for the queries in such rows, after their keys and values are written: [1, tokens, heads,
        value_dim]. `sinks` are float32 without gaps."""
        form, heads = self.form, self._num_heads
        out = qkv.new_empty((1, self._num_tokens, heads, form.value_dim))
        self._run(
            self._handle,
            qkv.data_ptr(),
            qkv.stride(1),
            form.key_dim,
            pages.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
            out.data_ptr(),
            heads * form.value_dim,
        )
        return out

    def _check_joined(self, qkv: Tensor) -> None:
        form = self.form
        width = (self._num_heads + form.num_kv_heads) * form.key_dim + form.num_kv_heads * form.value_dim
        if qkv.shape != (1, self._num_tokens, width) or qkv.dtype != form.dtype or qkv.stride(2) != 1:
            raise ValueError(
                f"qkv: must be [1, {self._num_tokens}, {width}] in {form.dtype}, got {list(qkv.shape)} in {qkv.dtype}"
            )

    def _check(self, name: str, rows: Tensor, heads: int, width: int) -> None:
        if rows.shape != (self._num_tokens, heads, width) or rows.dtype != self.form.dtype or rows.stride(2) != 1:
            raise ValueError(
                f"{name}: must be [{self._num_tokens}, {heads}, {width}] in {self.form.dtype} with dense heads, got "
                f"{list(rows.shape)} in {rows.dtype} with strides {rows.stride()}"
            )


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
