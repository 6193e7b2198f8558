"""Norms, rotary embedding and the best of scores by the native library, on plain tensors.

A row's result does not depend, in one bit, on the rows beside it. A call takes a few microseconds beside its work.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.kernels.cpu.c_interface import Scalar

TYPES = {torch.float32: Scalar.F32, torch.bfloat16: Scalar.BF16}


class NativeNorm:
    """`x / sqrt(mean(x^2) + eps) * weight` of the last dimension. `weight` [dim] is kept in float32; None: ones."""

    __slots__ = ("_address", "_dim", "_eps", "_norm", "_type", "_weight")

    def __init__(self, library: ctypes.CDLL, dim: int, weight: Tensor | None, eps: float, dtype: torch.dtype) -> None:
        self._weight = _of_dim(weight, dim)
        self._address = None if self._weight is None else self._weight.data_ptr()
        self._dim, self._eps = dim, eps
        self._type = int(TYPES[dtype])
        self._norm = library.slipstream_norm_rows

    def __call__(self, x: Tensor) -> Tensor:
        """[.., dim] of the norm's dtype, to a new tensor."""
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty_like(x)
        dim = self._dim
        rows = x.numel() // dim
        self._norm(self._type, x.data_ptr(), dim, self._address, self._eps, out.data_ptr(), dim, rows, dim)
        return out


class NativeLayerNorm:
    """`(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` of the last dimension. `weight` and `bias` [dim] are kept in
    float32; None: ones, zeros."""

    __slots__ = ("_addresses", "_dim", "_eps", "_norm", "_parts", "_type")

    def __init__(
        self,
        library: ctypes.CDLL,
        dim: int,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        dtype: torch.dtype,
    ) -> None:
        self._parts = [_of_dim(one, dim) for one in (weight, bias)]
        self._addresses = [None if one is None else one.data_ptr() for one in self._parts]
        self._dim, self._eps = dim, eps
        self._type = int(TYPES[dtype])
        self._norm = library.slipstream_layer_norm_rows

    def __call__(self, x: Tensor) -> Tensor:
        """[.., dim] of the norm's dtype, to a new tensor."""
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty_like(x)
        dim = self._dim
        weight, bias = self._addresses
        self._norm(self._type, x.data_ptr(), dim, weight, bias, self._eps, out.data_ptr(), dim, x.numel() // dim, dim)
        return out


class NativeRotation:
    """Rotates heads in place: the first half of their numbers with the second."""

    __slots__ = ("_rotate", "_type", "dim")

    def __init__(self, library: ctypes.CDLL, dim: int, dtype: torch.dtype) -> None:
        self.dim = dim  # numbers of a head that are rotated: its first ones
        self._type = int(TYPES[dtype])
        self._rotate = library.slipstream_rotate_rows

    def __call__(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """`x` [1, heads, tokens, dim or more] with dense heads; tables [.., tokens, dim], of one shape and strides.
        Returns `x`."""
        _, heads, tokens, _ = x.shape
        _, head_stride, token_stride, _ = x.stride()
        self._rotate(
            self._type,
            x.data_ptr(),
            token_stride,
            head_stride,
            tokens,
            heads,
            cosines.data_ptr(),
            sines.data_ptr(),
            cosines.stride(-2),
            self.dim,
        )
        return x

    def rotate_joined(self, rows: Tensor, num_heads: int, head_dim: int, cosines: Tensor, sines: Tensor) -> None:
        """The first `num_heads` heads of `head_dim` numbers in each of `rows` [1, tokens, ..], side by side."""
        self._rotate(
            self._type,
            rows.data_ptr(),
            rows.stride(1),
            head_dim,
            rows.shape[1],
            num_heads,
            cosines.data_ptr(),
            sines.data_ptr(),
            cosines.stride(-2),
            self.dim,
        )


def _of_dim(vector: Tensor | None, dim: int) -> Tensor | None:
    if vector is None:
        return None
    if vector.numel() != dim:
        raise ValueError(f"weight: {list(vector.shape)} for rows of {dim} numbers")
    return vector.float().contiguous().clone()


def best_of_rows(library: ctypes.CDLL, scores: Tensor, count: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The best of the first `count` of each row of `scores` [rows, ..] float32, and whether it is a finite number."""
    rows = len(scores)
    token_ids, sound = np.empty(rows, np.int32), np.empty(rows, np.bool_)
    library.slipstream_best_of_rows(
        scores.data_ptr(), scores.stride(0), count, rows, token_ids.ctypes.data, sound.ctypes.data
    )
    return token_ids, sound
