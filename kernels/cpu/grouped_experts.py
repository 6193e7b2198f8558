"""The experts of a layer by the native kernels, as one call on tensors: for models that are not recorded as programs.

    packed = pack_experts(library, gate_up, down, gate="silu")     once, from stacks [experts, out, in]
    y = grouped_experts(x, top_k_index, top_k_weights, packed)         [tokens, out], of x's dtype

Rows are sorted by expert, so an expert's weights are read once in a call, and not at all if no row has chosen it. A
row's result is the same bits whatever the rows beside it and however many threads there are.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.cpu.c_interface import (
    ExpertsCall,
    PackedWeight,
    PackJob,
    Scalar,
    SourceRows,
    WeightKind,
    WeightShape,
)
from slipstream.kernels.cpu.native_linear import packed_bytes
from slipstream.kernels.cpu.native_ops import expert_epilogue
from slipstream.kernels.moe.gate import ClampedSwiglu, ExpertGate

SCALARS = {torch.float32: Scalar.F32, torch.bfloat16: Scalar.BF16}
KINDS = {torch.float32: WeightKind.F32, torch.bfloat16: WeightKind.BF16}


@dataclass(frozen=True, slots=True)
class PackedStack:
    """Matrices of equal shape as the kernels read them, one behind the other."""

    shape: WeightShape
    contents: Tensor  # [matrices, bytes] uint8
    bias: Tensor | None  # [matrices, outputs] float32

    @classmethod
    def of_contents(
        cls,
        library: ctypes.CDLL,
        dtype: torch.dtype,
        contents: Tensor,
        bias: Tensor | None,
        outputs: int,
        inputs: int,
        *,
        is_paired: bool,
    ) -> PackedStack:
        """From what another one of this form has as contents and bias. Raises ValueError if they have another one."""
        shape = WeightShape(KINDS[dtype], is_paired, outputs, inputs, 0)
        num_bytes = packed_bytes(library, shape)
        if contents.dtype != torch.uint8 or contents.dim() != 2 or contents.shape[1] != num_bytes:
            raise ValueError(
                f"contents: {list(contents.shape)} in {contents.dtype} for {outputs} x {inputs} weights of "
                f"{num_bytes} bytes each"
            )
        if bias is not None and (bias.dtype != torch.float32 or bias.shape != (len(contents), outputs)):
            raise ValueError(f"bias: {list(bias.shape)} in {bias.dtype} for {len(contents)} x {outputs} outputs")
        return cls(shape, contents, bias)

    @property
    def first(self) -> PackedWeight:
        return PackedWeight(self.shape, self.contents.data_ptr())


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """The experts of a layer. `gate_up` is paired (see linear.hpp)."""

    library: ctypes.CDLL
    dtype: torch.dtype  # of rows: float32 or bfloat16
    gate: ExpertGate
    gate_up: PackedStack
    down: PackedStack

    @property
    def num_experts(self) -> int:
        return len(self.down.contents)


def pack_experts(
    library: ctypes.CDLL,
    gate_up: Tensor,
    down: Tensor,
    *,
    gate: ExpertGate,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    interleaved: bool = False,
) -> PackedExperts:
    """Packs `gate_up` [experts, 2 * inner, dim] and `down` [experts, out, inner], float32 or bfloat16, of any
    strides (stacks stored as [experts, in, out] are handed over as `stack.transpose(1, 2)`). `interleaved`: gate and up
    outputs take turns; otherwise all gate outputs come first. The originals are not needed any more.

    Raises ValueError for other dtypes and for shapes that do not fit together."""
    if gate_up.dtype not in KINDS or down.dtype != gate_up.dtype:
        raise ValueError(f"experts: must be float32 or bfloat16, got {gate_up.dtype} and {down.dtype}")
    num_experts, outputs, _ = gate_up.shape
    if down.shape[0] != num_experts or 2 * down.shape[2] != outputs:
        raise ValueError(f"experts: gate_up {list(gate_up.shape)} and down {list(down.shape)} do not fit together")
    gate_rows, up_rows = (
        (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(outputs // 2), slice(outputs // 2, None))
    )
    if gate_up_bias is not None:
        gate_up_bias = torch.cat([gate_up_bias[:, gate_rows], gate_up_bias[:, up_rows]], dim=1)
    return PackedExperts(
        library,
        gate_up.dtype,
        gate,
        _pack(library, gate_up, gate_up_bias, (gate_rows, up_rows)),
        _pack(library, down, down_bias, (slice(None),)),
    )


def grouped_experts(x: Tensor, top_k_index: Tensor, top_k_weights: Tensor, experts: PackedExperts) -> Tensor:
    """The sum of weight * expert(row) over each row's choices, [tokens, out] in the dtype of `x` [tokens, dim].
    `top_k_index` and `top_k_weights` are [tokens, top_k]; an index that is none of an expert (as transformers' expert
    parallelism has them) adds nothing. Raises ValueError if dtypes or shapes are others than those of `experts`."""
    num_tokens, dim = x.shape
    shape = experts.gate_up.shape
    if x.dtype != experts.dtype or dim != shape.inputs or x.device.type != "cpu":
        raise ValueError(
            f"x: must be [tokens, {shape.inputs}] in {experts.dtype} on the CPU, got {list(x.shape)} in {x.dtype}"
        )
    if top_k_index.shape != top_k_weights.shape or len(top_k_index) != num_tokens:
        raise ValueError(
            f"top_k_index {list(top_k_index.shape)} and top_k_weights {list(top_k_weights.shape)}: "
            f"both must be [{num_tokens}, top_k]"
        )
    x = x if x.stride(1) == 1 else x.contiguous()
    index, weights = top_k_index.to(torch.int64).contiguous(), top_k_weights.to(torch.float32).contiguous()
    y = torch.empty(num_tokens, experts.down.shape.outputs, dtype=x.dtype)
    call = ExpertsCall(
        type=SCALARS[x.dtype],
        rows=num_tokens,
        top_k=index.shape[1],
        num_experts=experts.num_experts,
        gate=expert_epilogue(experts.gate),
        x=x.data_ptr(),
        x_stride=x.stride(0),
        experts=index.data_ptr(),
        weights=weights.data_ptr(),
        gate_up=experts.gate_up.first,
        gate_up_bytes=experts.gate_up.contents.shape[1],
        gate_up_bias=_address(experts.gate_up.bias),
        down=experts.down.first,
        down_bytes=experts.down.contents.shape[1],
        down_bias=_address(experts.down.bias),
        y=y.data_ptr(),
    )
    if isinstance(experts.gate, ClampedSwiglu):
        call.alpha, call.limit = experts.gate.alpha, experts.gate.limit
    experts.library.slipstream_experts(call)
    return y


def _pack(library: ctypes.CDLL, stack: Tensor, bias: Tensor | None, runs: tuple[slice, ...]) -> PackedStack:
    """`runs` are the rows of each source of a matrix; two of them make a paired weight."""
    count, outputs, inputs = stack.shape
    shape = WeightShape(KINDS[stack.dtype], len(runs) == 2, outputs, inputs, 0)
    contents = torch.empty(count, library.slipstream_packed_bytes(shape), dtype=torch.uint8)
    for matrix, packed in zip(stack, contents, strict=True):
        rows = matrix if matrix.stride(1) == 1 else matrix.contiguous()
        sources = [_source(rows[run]) for run in runs]
        job = PackJob(shape, (SourceRows * len(sources))(*sources), len(sources), packed.data_ptr())
        library.slipstream_pack(job, 1)
    return PackedStack(shape, contents, None if bias is None else bias.float().contiguous())


def _source(rows: Tensor) -> SourceRows:
    return SourceRows(outputs=len(rows), values=rows.data_ptr(), stride=rows.stride(0), values_type=SCALARS[rows.dtype])


def _address(bias: Tensor | None) -> int | None:
    return None if bias is None else bias.data_ptr()
