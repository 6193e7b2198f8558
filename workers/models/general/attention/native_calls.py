"""The calls of a model's attention by the native library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from slipstream.kernels.cpu.native_attention import NativeAttention, PageForm
from slipstream.workers.models.general.attention.attention_call import AttentionCall, AttentionCalls
from slipstream.workers.models.interface.step_arrays import StepArrays


class NativeCalls:
    """Those of one rank that the library can compute. `num_units` are the rank's."""

    def __init__(
        self, library: ctypes.CDLL, calls: AttentionCalls, num_units: int, page_tokens: int, dtype: torch.dtype
    ) -> None:
        places = calls.kv_spec().page_groups.places
        unit_numbers = max(layer.numbers for layer in calls.kv_spec().layers) // num_units
        self._kinds: dict[tuple[object, ...], NativeAttention] = {}
        self._groups: list[tuple[int, NativeAttention]] = []
        self._calls: list[NativeAttention | None] = []
        for call in calls.calls:
            sizes = (call.num_heads, call.num_kv_heads, call.key_dim, call.value_dim)
            group = places[call.layer][0]
            key = (group, *sizes, call.scale, call.softcap, call.visibility)
            if key not in self._kinds:
                try:
                    kind = _kind(library, call, num_units, page_tokens, unit_numbers * page_tokens, dtype)
                except ValueError:  # sizes or a dtype that the kernels do not have
                    self._calls.append(None)
                    continue
                self._kinds[key] = kind
                self._groups.append((group, kind))
            self._calls.append(self._kinds[key])

    def begin_step(self, arrays: StepArrays) -> None:
        for group, kind in self._groups:
            own = arrays.groups[group - 1] if group else arrays
            kind.begin_step(arrays.query_starts, arrays.kv_lens, own.page_table, own.slots)

    def __getitem__(self, number: int) -> NativeAttention | None:
        """None: the library cannot compute this call."""
        return self._calls[number]


def _kind(
    library: ctypes.CDLL, call: AttentionCall, num_units: int, page_tokens: int, unit_numbers: int, dtype: torch.dtype
) -> NativeAttention:
    """Raises ValueError."""
    form = PageForm(
        call.num_kv_heads,
        call.key_dim,
        call.value_dim,
        page_tokens,
        dtype,
        unit_heads=call.num_kv_heads // num_units,
        unit_bytes=unit_numbers * dtype.itemsize,
        page_bytes=num_units * unit_numbers * dtype.itemsize,
    )
    return NativeAttention(
        library,
        form,
        num_heads=call.num_heads,
        scale=call.scale,
        window=call.visibility.window,
        chunk=call.visibility.chunk,
        softcap=call.softcap,
    )


def heads_of(rows: Tensor) -> Tensor:
    """[1, heads, tokens, dim] as [tokens, heads, dim], with the numbers of a head one behind the other."""
    heads = rows[0].transpose(0, 1)
    return heads if heads.stride(2) == 1 else heads.contiguous()
