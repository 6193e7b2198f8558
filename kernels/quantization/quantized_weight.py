"""Quantised weights of linear layers in one canonical form a kind, whatever a checkpoint stored: quantise, dequantise,
join, and the plain product that every kernel is measured against.

    Fp8Weight    codes [out, in] float8_e4m3fn   scales of blocks of outputs and inputs      w = code * scale
    Int8Weight   codes [out, in] int8            one scale an output                         w = code * scale
    Int4Weight   codes [out, in / 8] int32       scale and zero of an output and input group w = (code - zero) * scale

All matrices are [out, in], as in `torch.nn.Linear`. What raises says the argument it is about in a ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

FP8_MAX = 448.0  # largest finite float8_e4m3fn
INT8_MAX = 127
INT4_MAX = 15
CODES_PER_WORD = 8  # 4-bit codes in an int32
# Ranges that `quantize_int4` tries for each group, as shares of the whole: clipping the outermost weights often costs
# less than the coarser steps that reach them.
INT4_CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8)
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """`codes` [out, in] float8_e4m3fn; `scales` [ceil(out / block_out), ceil(in / block_in)] float32. One scale a
    channel is a block of (1, in); one for the whole tensor is stored as one a channel."""

    codes: Tensor
    scales: Tensor
    block: tuple[int, int]

    def __post_init__(self) -> None:
        _check_dtype("codes", self.codes, torch.float8_e4m3fn)
        _check_dtype("scales", self.scales, torch.float32)
        if min(self.block) < 1:
            raise ValueError(f"block must be positive, got {self.block}")
        rows, columns = self.shape
        _check_shape("scales", self.scales, (-(-rows // self.block[0]), -(-columns // self.block[1])))

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def is_per_channel(self) -> bool:
        return self.block == (1, self.codes.shape[1])

    def to(self, device: torch.device | str) -> Fp8Weight:
        return Fp8Weight(self.codes.to(device), self.scales.to(device), self.block)


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """`codes` [out, in] int8 in -127 .. 127; `scales` [out] float32."""

    codes: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        _check_dtype("codes", self.codes, torch.int8)
        _check_dtype("scales", self.scales, torch.float32)
        _check_shape("scales", self.scales, (self.codes.shape[0],))

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.codes.shape[0], self.codes.shape[1]

    def to(self, device: torch.device | str) -> Int8Weight:
        return Int8Weight(self.codes.to(device), self.scales.to(device))


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """`codes` [out, in / 8] int32, a word holding eight consecutive inputs, the first in its lowest four bits;
    `scales` [out, groups] of floating point; `zeros` [out, groups] uint8 in 0 .. 15. `perm` [in] int32 where the inputs
    were sorted by group (GPTQ's act-order): input j of the codes is input `perm[j]` of x."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    perm: Tensor | None = None

    def __post_init__(self) -> None:
        _check_dtype("codes", self.codes, torch.int32)
        _check_dtype("zeros", self.zeros, torch.uint8)
        if not self.scales.is_floating_point():
            raise ValueError(f"scales must be of floating point, got {self.scales.dtype}")
        rows, columns = self.shape
        if self.scales.dim() != 2 or not self.scales.shape[1] or columns % self.scales.shape[1]:
            raise ValueError(
                f"scales must be [{rows}, groups] with groups dividing {columns}, got {_shape(self.scales)}"
            )
        if self.group_size % CODES_PER_WORD:
            raise ValueError(
                f"scales make groups of {self.group_size} inputs, which is no multiple of {CODES_PER_WORD}"
            )
        _check_shape("scales", self.scales, (rows, self.scales.shape[1]))
        _check_shape("zeros", self.zeros, (rows, self.scales.shape[1]))
        if self.perm is not None:
            _check_dtype("perm", self.perm, torch.int32)
            _check_shape("perm", self.perm, (columns,))

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.codes.shape[0], self.codes.shape[1] * CODES_PER_WORD

    @property
    def group_size(self) -> int:
        return self.shape[1] // self.scales.shape[1]

    def to(self, device: torch.device | str) -> Int4Weight:
        perm = None if self.perm is None else self.perm.to(device)
        return Int4Weight(self.codes.to(device), self.scales.to(device), self.zeros.to(device), perm)


QuantizedWeight = Fp8Weight | Int8Weight | Int4Weight


def quantize_fp8(weight: Tensor, block: tuple[int, int] | None = None) -> Fp8Weight:
    """`weight` [out, in] with one scale for each `block` of outputs and inputs; None: for each output."""
    rows, columns = weight.shape
    block = (1, columns) if block is None else block
    whole = _padded(weight.float().abs(), block)
    highest = whole.view(whole.shape[0] // block[0], block[0], whole.shape[1] // block[1], block[1])
    scales = (highest.amax(dim=(1, 3)) / FP8_MAX).clamp_(min=_TINY)
    scaled = weight.float() / _spread(scales, block, (rows, columns))
    return Fp8Weight(scaled.clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales, block)


def quantize_int8(weight: Tensor) -> Int8Weight:
    """`weight` [out, in], symmetric, rounded half to even."""
    wide = weight.float()
    scales = (wide.abs().amax(dim=1) / INT8_MAX).clamp_(min=_TINY)
    return Int8Weight((wide / scales[:, None]).round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8), scales)


def quantize_int4(weight: Tensor, group_size: int = 128) -> Int4Weight:
    """`weight` [out, in] with a scale and a zero for each output and `group_size` inputs, rounded to nearest; of a few
    ranges (`INT4_CLIPS`) each group takes the one with the least squared error."""
    if group_size < 1 or weight.shape[1] % group_size:
        raise ValueError(f"group_size must divide {weight.shape[1]} inputs, got {group_size}")
    groups = weight.float().view(len(weight), -1, group_size)
    low, high = groups.amin(dim=2).clamp_(max=0), groups.amax(dim=2).clamp_(min=0)
    best = torch.full_like(low, float("inf"))
    scales, zeros = torch.empty_like(low), torch.empty_like(low)
    codes = torch.empty_like(groups, dtype=torch.uint8)
    for clip in INT4_CLIPS:
        scale = ((high - low) * clip / INT4_MAX).clamp_(min=_TINY)
        zero = (-low * clip / scale).round_().clamp_(0, INT4_MAX)
        code = ((groups / scale[..., None]).round_() + zero[..., None]).clamp_(0, INT4_MAX)
        error = ((code - zero[..., None]) * scale[..., None]).sub_(groups).square_().sum(dim=2)
        better = error < best
        best = torch.where(better, error, best)
        scales, zeros = torch.where(better, scale, scales), torch.where(better, zero, zeros)
        codes = torch.where(better[..., None], code.to(torch.uint8), codes)
    return Int4Weight(pack_codes(codes.flatten(1)), scales, zeros.to(torch.uint8))


def dequantize(weight: QuantizedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix [out, in] that a quantised weight stands for, computed in float32 and rounded once to `dtype`."""
    match weight:
        case Fp8Weight():
            wide = weight.codes.float() * _spread(weight.scales, weight.block, weight.shape)
        case Int8Weight():
            wide = weight.codes.float() * weight.scales[:, None]
        case Int4Weight():
            codes = unpack_codes(weight.codes).float().view(weight.shape[0], -1, weight.group_size)
            wide = ((codes - weight.zeros[..., None]) * weight.scales.float()[..., None]).flatten(1)
            if weight.perm is not None:
                wide = torch.empty_like(wide).index_copy_(1, weight.perm.long(), wide)
    return wide.to(dtype)


def quantized_linear(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """`x @ dequantize(weight).T + bias`: [rows, in] -> [rows, out] in x's dtype. The reference: it makes the whole
    matrix in each call."""
    return F.linear(x, dequantize(weight, x.dtype), bias)


def join_outputs(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Weights of the same input, one below the other. Raises ValueError where their kinds, blocks, groups or
    permutations differ, or where a block of outputs would reach from one into the next."""
    first = parts[0]
    if any(type(part) is not type(first) or part.shape[1] != first.shape[1] for part in parts):
        raise ValueError(
            f"parts must be of one kind and input size, got {[(type(p).__name__, p.shape) for p in parts]}"
        )
    codes = torch.cat([part.codes for part in parts])
    match first:
        case Int8Weight():
            return Int8Weight(codes, torch.cat([part.scales for part in parts]))
        case Fp8Weight(block=block):
            fp8 = [part for part in parts if isinstance(part, Fp8Weight)]
            if any(part.block != block for part in fp8):
                raise ValueError(f"parts must have the same block, got {[part.block for part in fp8]}")
            if any(part.shape[0] % block[0] for part in fp8[:-1]):
                raise ValueError(f"parts must end with a block of {block[0]} outputs, got {[p.shape[0] for p in fp8]}")
            return Fp8Weight(codes, torch.cat([part.scales for part in fp8]), block)
        case Int4Weight(perm=perm):
            int4 = [part for part in parts if isinstance(part, Int4Weight)]
            if any(part.group_size != first.group_size for part in int4):
                raise ValueError(f"parts must have the same groups, got {[part.group_size for part in int4]}")
            if any(not _same(part.perm, perm) for part in int4):
                raise ValueError("parts must have the same perm")
            scales, zeros = torch.cat([part.scales for part in int4]), torch.cat([part.zeros for part in int4])
            return Int4Weight(codes, scales, zeros, perm)


def pack_codes(codes: Tensor) -> Tensor:
    """4-bit codes [..., n] in words [..., n / 8] int32, the first code in the lowest bits."""
    if codes.shape[-1] % CODES_PER_WORD:
        raise ValueError(f"codes must come in multiples of {CODES_PER_WORD}, got {codes.shape[-1]}")
    words = torch.zeros(*codes.shape[:-1], codes.shape[-1] // CODES_PER_WORD, dtype=torch.int32, device=codes.device)
    for i in range(CODES_PER_WORD):
        words |= codes[..., i::CODES_PER_WORD].to(torch.int32) << 4 * i
    return words


def unpack_codes(words: Tensor, order: Sequence[int] = range(CODES_PER_WORD)) -> Tensor:
    """The codes [..., 8 * n] uint8 of words [..., n] int32; the i-th four bits hold code `order[i]` of each eight."""
    codes = torch.empty(*words.shape, CODES_PER_WORD, dtype=torch.uint8, device=words.device)
    for i, place in enumerate(order):
        codes[..., place] = (words >> 4 * i) & INT4_MAX
    return codes.flatten(-2)


def _spread(scales: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """Scales of blocks [block rows, block columns] for every weight, or [out, 1] where one serves a whole row."""
    if block[1] < shape[1]:
        scales = scales.repeat_interleave(block[1], dim=1)[:, : shape[1]]
    return scales if block[0] == 1 else scales.repeat_interleave(block[0], dim=0)[: shape[0]]


def _padded(matrix: Tensor, block: tuple[int, int]) -> Tensor:
    rows, columns = matrix.shape
    return F.pad(matrix, (0, -columns % block[1], 0, -rows % block[0]))


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _check_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}")


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {_shape(tensor)}")


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)
