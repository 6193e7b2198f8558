"""The attention of a flat batch over pages, as a function for transformers' `AttentionInterface`.

A model calls it once for each of its `AttentionCalls`, in order. The queries, keys and values are those of all tokens
of a step, one sequence after the other: [1, heads, tokens, dim].
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slipstream.kernels.cpu.native_rows import NativeRotation
from slipstream.workers.models.general.attention.attention_call import AttentionCall, AttentionCalls
from slipstream.workers.models.general.attention.native_calls import NativeCalls, heads_of
from slipstream.workers.models.general.graph.leaves import leaf
from slipstream.workers.models.interface.page_layers import PageLayer, page_layers
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

LayerDone = Callable[[int], None]


@dataclass(slots=True)
class _Step:
    batch: StepBatch
    layers: tuple[PageLayer, ...]
    kv: Tensor
    layer_done: LayerDone | None
    num_calls: int = 0


class FlatAttention:
    """The calls of one model on one rank; `kv` is the rank's pool. With a `library`, that computes what it can, and
    torch the rest."""

    def __init__(
        self,
        calls: AttentionCalls,
        num_units: int,
        page_tokens: int,
        tp: TensorParallel | None = None,
        *,
        library: ctypes.CDLL | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._calls = calls
        self._places = calls.kv_spec().page_groups.places  # group and slot of each layer
        self._tp = TensorParallel() if tp is None else tp
        self._num_units = num_units  # of the rank
        self._page_tokens = page_tokens
        self._native = None if library is None else NativeCalls(library, calls, num_units, page_tokens, dtype)
        self._step: _Step | None = None
        self._layers: tuple[PageLayer, ...] = ()
        self._pool: Tensor | None = None
        self._num_traced: int | None = None

    @property
    def num_calls(self) -> int:
        return len(self._calls.calls)

    @contextmanager
    def step(self, batch: StepBatch, kv: Tensor, layer_done: LayerDone | None) -> Iterator[None]:
        """Within it, the model runs once over `batch`. Raises RuntimeError if it makes other calls than expected."""
        if self._pool is not kv:
            stored = self._calls.kv_spec().layers
            self._layers, self._pool = page_layers(kv, stored, self._num_units, self._page_tokens), kv
        if self._native is not None:
            self._native.begin_step(batch.arrays)
        step = self._step = _Step(batch, self._layers, kv, layer_done)
        try:
            yield
            if step.num_calls != self.num_calls:
                raise RuntimeError(f"{step.num_calls} calls of attention, expected {self.num_calls}")
        finally:
            self._step = None

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Within it, calls compute nothing and are leaves of a graph (see `graph.leaves`)."""
        self._num_traced = 0
        try:
            yield
        finally:
            self._num_traced = None

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object, **kwargs: object
    ) -> tuple[Tensor, None]:
        """Attends [1, heads, tokens, key_dim] to the pages, after its keys and values are in them. Returns
        [1, tokens, heads, value_dim] and no weights."""
        sinks = kwargs.get("s_aux")
        assert sinks is None or isinstance(sinks, Tensor)
        if self._num_traced is not None:
            number, self._num_traced = self._num_traced, self._num_traced + 1
            tensors = [query, key, value] if sinks is None else [query, key, value, sinks]
            return leaf(number, tensors, (1, query.shape[2], query.shape[1], value.shape[3])), None
        if self._step is None:
            raise RuntimeError("attention outside of a step")
        return self.compute(self._step.num_calls, query, key, value, sinks), None

    def compute(self, number: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Call `number` of the step."""
        step, call = self._step, self._calls.calls[number]
        assert step is not None
        step.num_calls += 1
        if call.is_whole:
            query = query[:, self._own(query.shape[1])]
            key, value = (heads[:, self._own(heads.shape[1])] for heads in (key, value))
        if sinks is not None:
            sinks = _local(sinks)
            sinks = sinks if len(sinks) == call.num_heads else sinks[self._own(len(sinks))]
        native = None if self._native is None else self._native[number]
        if native is None:
            attended = self._by_torch(step, call, query, key, value, sinks)
        else:
            pages = step.kv[self._places[call.layer][1]]
            if call.stores:
                native.write(heads_of(key), heads_of(value), pages)
                if step.layer_done is not None:
                    step.layer_done(call.layer)
            attended = native.attend(heads_of(query), pages, None if sinks is None else sinks.float().contiguous())
        if call.is_whole:
            attended = self._tp.all_gather(attended, 1)
        return attended[None]

    def computes_joined(self, number: int) -> bool:
        """Whether `compute_joined` can compute call `number`."""
        call = self._calls.calls[number]
        return self._native is not None and self._native[number] is not None and call.stores and not call.is_whole

    def compute_joined(
        self,
        number: int,
        rotation: NativeRotation | None,
        qkv: Tensor,
        cosines: Tensor | None = None,
        sines: Tensor | None = None,
        *,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Call `number` for rows of queries, keys and values side by side, [1, tokens, ..], after queries and keys are
        rotated in place."""
        step, call = self._step, self._calls.calls[number]
        native = None if self._native is None else self._native[number]
        assert step is not None
        assert native is not None
        step.num_calls += 1
        if rotation is not None and cosines is not None and sines is not None:
            rotation.rotate_joined(qkv, call.num_heads + call.num_kv_heads, call.key_dim, cosines, sines)
        pages = step.kv[self._places[call.layer][1]]
        native.write_joined(qkv, pages)
        if step.layer_done is not None:
            step.layer_done(call.layer)
        return native.attend_joined(qkv, pages, None if sinks is None else sinks.float().contiguous())

    def _by_torch(
        self, step: _Step, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        layer, group = step.layers[call.layer], step.batch.groups[self._places[call.layer][0]]
        if call.stores:
            layer.write(key[0].transpose(0, 1), value[0].transpose(0, 1), group.slots)
            if step.layer_done is not None:
                step.layer_done(call.layer)
        return _attend(query[0].transpose(0, 1), layer, step.batch, group.page_table, call, sinks)

    def _own(self, num_heads: int) -> slice:
        return self._tp.shard(num_heads, "num_attention_heads")


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a parameter that is dealt out (a DTensor); any other tensor as it is."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _attend(
    query: Tensor, layer: PageLayer, batch: StepBatch, page_table: Tensor, call: AttentionCall, sinks: Tensor | None
) -> Tensor:
    """[tokens, heads, key_dim] -> [tokens, heads, value_dim], sequence by sequence."""
    out = torch.empty(*query.shape[:2], call.value_dim, dtype=query.dtype, device=query.device)
    first = 0
    for row, (num_queries, kv_len) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
        begin = call.visibility.first_key(kv_len - num_queries) // layer.page_tokens
        pages = page_table[row, begin : (kv_len - 1) // layer.page_tokens + 1]
        first_key = begin * layer.page_tokens
        keys, values = layer.gather(pages, kv_len - first_key)
        rows = slice(first, first + num_queries)
        positions = torch.arange(kv_len - num_queries, kv_len, device=query.device)
        out[rows] = attend_one(query[rows], keys, values, positions, first_key, call, sinks)
        first += num_queries
    return out


def attend_one(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    first_key: int,
    call: AttentionCall,
    sinks: Tensor | None,
) -> Tensor:
    """Attends `query` [n, heads, key_dim] at `positions` [n] to `keys` and `values` [kv_heads, keys, dim], the first of
    which is at `first_key`. `sinks` [heads] are scores without a value. Returns [n, heads, value_dim]."""
    num_queries, num_heads, key_dim = query.shape
    grouped = query.view(num_queries, call.num_kv_heads, -1, key_dim).permute(1, 2, 0, 3)
    scores = torch.matmul(grouped.float(), keys.float().transpose(1, 2)[:, None]) * call.scale  # [kv, group, n, keys]
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    at = torch.arange(first_key, first_key + keys.shape[1], device=query.device)
    seen = at[None, :] <= positions[:, None]
    if call.visibility.window is not None:
        seen &= at[None, :] > positions[:, None] - call.visibility.window
    if call.visibility.chunk is not None:
        seen &= at[None, :] // call.visibility.chunk == positions[:, None] // call.visibility.chunk
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(call.num_kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    attended = torch.matmul(weights.to(values.dtype), values[:, None])
    return attended.permute(2, 0, 1, 3).reshape(num_queries, num_heads, call.value_dim)
