"""The experts of a layer applied to the rows that have chosen them, in Triton.

    pairs (a row and an expert that it has chosen) sorted by expert, each expert's filled up to whole blocks:

        block      0          1          2          3           a program: a block of pairs times a run of outputs
        expert     0          0          2          none
        pairs   | 4 7 9 12 | 15 . . . | 1 3 8 . | . . . . |

The blocks are laid out by sorts and sums on the device, in arrays whose sizes follow from the number of rows alone. So
nothing waits for the device, a step can be recorded as a CUDA graph, and blocks without an expert end at once. Each
output is summed over the inputs in order, and a row's experts in the order of its choices. Not yet run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.elementwise.gpu.gated import opened
from slipstream.kernels.moe.gate import ClampedSwiglu
from slipstream.kernels.moe.grouped_experts import ExpertWeights

BLOCK_OUTPUTS, BLOCK_INPUTS = 64, 64
MAX_BLOCK_PAIRS = 64
NO_GATE, SILU, GELU, CLAMPED = range(4)


@triton.jit
def grouped_product_kernel(
    x,  # [.., in]: row `pair // pairs_of_row` belongs to a pair
    weight,  # [experts, out (twice if gated), in], contiguous
    bias,  # [experts, out (twice if gated)]
    out,  # [pairs, out]
    block_experts,  # [blocks], or -1
    block_pairs,  # [blocks, BLOCK_PAIRS], -1: none
    num_outputs,
    num_inputs,
    x_stride,
    pairs_of_row,
    alpha,
    limit,
    GATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
):
    expert = tl.load(block_experts + tl.program_id(0)).to(tl.int64)
    if expert < 0:
        return
    pairs = tl.load(block_pairs + tl.program_id(0) * BLOCK_PAIRS + tl.arange(0, BLOCK_PAIRS))
    outputs = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    rows_of_weight = num_outputs * 2 if GATE else num_outputs
    known = outputs < num_outputs
    x_rows = x + (pairs // pairs_of_row).to(tl.int64)[:, None] * x_stride
    weight_rows = weight + (expert * rows_of_weight + outputs).to(tl.int64)[None, :] * num_inputs
    y = tl.zeros((BLOCK_PAIRS, BLOCK_OUTPUTS), tl.float32)
    y_up = tl.zeros((BLOCK_PAIRS, BLOCK_OUTPUTS), tl.float32)
    for start in range(0, num_inputs, BLOCK_INPUTS):
        at = start + tl.arange(0, BLOCK_INPUTS)
        inside = at < num_inputs
        tile_x = tl.load(x_rows + at[None, :], mask=(pairs >= 0)[:, None] & inside[None, :], other=0.0)
        mask = inside[:, None] & known[None, :]
        tile = tl.load(weight_rows + at[:, None], mask=mask, other=0.0)
        y = tl.dot(tile_x, tile, y, input_precision="ieee")
        if GATE:
            up = tl.load(weight_rows + num_outputs * num_inputs + at[:, None], mask=mask, other=0.0)
            y_up = tl.dot(tile_x, up, y_up, input_precision="ieee")
    if HAS_BIAS:
        biases = bias + expert * rows_of_weight + outputs
        y += tl.load(biases, mask=known, other=0.0).to(tl.float32)[None, :]
        if GATE:
            y_up += tl.load(biases + num_outputs, mask=known, other=0.0).to(tl.float32)[None, :]
    if GATE == 3:
        y = tl.where(y > limit, limit, y)  # so that a nan stays
        y_up = tl.where(y_up > limit, limit, tl.where(y_up < -limit, -limit, y_up))
        y = (y_up + 1.0) * y * tl.sigmoid(alpha * y)
    elif GATE:
        y = opened(y, GATE == 2) * y_up
    to = out + pairs.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(to, y.to(out.dtype.element_ty), mask=(pairs >= 0)[:, None] & known[None, :])


@dataclass(frozen=True, slots=True)
class PairBlocks:
    """Which pairs, and of which of the rank's experts, each program takes."""

    experts: Tensor  # [blocks] int32
    pairs: Tensor  # [blocks, block_pairs] int32

    @staticmethod
    def of(experts: Tensor, first: int, num_own: int) -> PairBlocks:
        """Of the choices `experts` [rows, top_k]; those that are not among the `num_own` from `first` on are left
        out."""
        num_pairs, device = experts.numel(), experts.device
        size = min(MAX_BLOCK_PAIRS, max(16, triton.next_power_of_2(-(-num_pairs // num_own))))
        num_blocks = min(num_pairs, num_pairs // size + num_own)
        own = experts.flatten() - first
        own = torch.where((own >= 0) & (own < num_own), own, num_own)
        order = own.argsort(stable=True)
        by_expert = own[order]
        counts = torch.zeros(num_own + 1, dtype=torch.int64, device=device)
        counts.scatter_add_(0, own, torch.ones_like(own))
        blocks = (counts + size - 1) // size
        blocks[num_own] = 0
        ends = blocks.cumsum(0)
        place = torch.arange(num_pairs, device=device) - (counts.cumsum(0) - counts)[by_expert]
        place += (ends - blocks)[by_expert] * size
        room = num_blocks * size
        place = torch.where(by_expert < num_own, place, room)  # one place more, for all that is left out
        pairs = torch.full((room + 1,), -1, dtype=torch.int32, device=device)
        pairs.scatter_(0, place, order.to(torch.int32))
        number = torch.arange(num_blocks, device=device)
        of_block = torch.searchsorted(ends[:num_own].contiguous(), number, right=True)
        of_block = torch.where(of_block < num_own, of_block, -1)
        return PairBlocks(of_block.to(torch.int32), pairs[:room].view(num_blocks, size))


def grouped_experts(x: Tensor, experts: Tensor, weights: Tensor, layer: ExpertWeights) -> Tensor:
    """As `moe.grouped_experts.grouped_experts`, the reference: [rows, out] in float32."""
    num_rows, top_k = experts.shape
    blocks = PairBlocks.of(experts, layer.first, len(layer.gate_up))
    inner = torch.empty(num_rows * top_k, layer.down.shape[2], dtype=x.dtype, device=x.device)
    _product(x, top_k, layer.gate_up, layer.gate_up_bias, inner, blocks, layer)
    # Pairs of experts on other ranks are not written here, and must add nothing.
    y = torch.zeros(num_rows * top_k, layer.down.shape[1], dtype=torch.float32, device=x.device)
    _product(inner, 1, layer.down, layer.down_bias, y, blocks, None)
    return (y.view(num_rows, top_k, -1) * weights.float()[..., None]).sum(dim=1)


def _product(
    x: Tensor,
    pairs_of_row: int,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    blocks: PairBlocks,
    gated: ExpertWeights | None,
) -> None:
    """`gated` has the gate of a product with gate and up weights; None: the outputs are stored as they are."""
    if not out.numel():
        return
    gate, swiglu = NO_GATE, ClampedSwiglu()
    match None if gated is None else gated.gate:
        case "silu":
            gate = SILU
        case "gelu_tanh":
            gate = GELU
        case ClampedSwiglu() as swiglu:
            gate = CLAMPED
    num_blocks, block_pairs = blocks.pairs.shape
    grid = (num_blocks, triton.cdiv(out.shape[1], BLOCK_OUTPUTS))
    grouped_product_kernel[grid](
        x,
        weight,
        bias,
        out,
        blocks.experts,
        blocks.pairs,
        out.shape[1],
        weight.shape[2],
        x.stride(0),
        pairs_of_row,
        swiglu.alpha,
        swiglu.limit,
        GATE=gate,
        HAS_BIAS=bias is not None,
        BLOCK_PAIRS=block_pairs,
        BLOCK_OUTPUTS=BLOCK_OUTPUTS,
        BLOCK_INPUTS=BLOCK_INPUTS,
    )
