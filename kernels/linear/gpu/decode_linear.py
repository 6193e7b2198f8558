"""Products of few rows with a large weight, as in decoding: the weight is read once, at memory bandwidth, and nothing
else matters. Weights are dense (bfloat16, float16, float32) or `Fp8Weight`, whose codes are widened in registers.

    y = x @ weight.T                     x [rows, in], weight [out, in]
    norm     rms_norm(x) first           its gain goes onto x, its one divisor a row onto the sums: no pass of its own
    gated    silu(y[:, :half]) * y[:, half:], or with the tanh form of gelu
    add_to   add_to += y, in place

What is fused here would else be launches of a few microseconds each beside products of 10 to 50.

One row takes `gemv_kernel`: fused multiply-adds, each thread keeping sums of its own until the end. More rows take
`skinny_kernel`: tensor cores with rows padded to 16, 32 or 64. A program owns a run of outputs and reads their rows of
the weight from end to end; where there are too few outputs to fill the GPU the inputs are split, and `join_kernel` adds
the parts in a fixed order, so that results repeat. Sums are float32 and the result is rounded once. A row's bits depend
on which of the kernels it met, not on the other rows. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from slipstream.kernels.benchmark.benchmark_case import Case, rotated
from slipstream.kernels.elementwise.gated import Gate
from slipstream.kernels.linear.gpu.decode_linear_kernels import gemv_kernel, join_kernel, skinny_kernel
from slipstream.kernels.quantization.quantized_weight import Fp8Weight

MAX_ROWS = 64
NUM_MULTIPROCESSORS = 132  # H100 and H200


@dataclass(frozen=True, slots=True)
class DecodeLinearConfig:
    """How a product is cut up. `block_rows` 1 is the gemv."""

    block_rows: int
    block_outputs: int
    block_inputs: int
    num_splits: int
    num_warps: int
    num_stages: int


def choose_config(
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    weight_bytes: int,
    *,
    gated: bool = False,
    scale_block: tuple[int, int] | None = None,
) -> DecodeLinearConfig:
    """`num_outputs` are the product's (half of a gated weight's rows), `weight_bytes` the size of one weight,
    `scale_block` the block that a scale serves, None where it serves whole rows.

    Why these: 4.3 TB/s over a latency of 0.8 us ask for 26 KB in flight on each multiprocessor, so loads run ahead by
    32 KB a program in the gemv, where several programs share one, and by 48 KB in the skinny kernel. Programs should
    come in whole rounds of 132: 4096 outputs make 256 of 16, two a multiprocessor, or 128 of 32. x is read again by
    each program, out of the L2: with more rows programs take more outputs, so that it stays well below the weight's
    bytes.
    """
    halves = 2 if gated else 1
    most_outputs, most_inputs = (128, 1024) if scale_block is None else scale_block
    if num_rows == 1:
        rows_of_weight = next((size for size in (16, 8) if num_outputs * halves >= 1.8 * NUM_MULTIPROCESSORS * size), 4)
        block_outputs = min(rows_of_weight // halves, most_outputs)
        block_inputs = min(8192 // rows_of_weight, _power_below(num_inputs), most_inputs)
        tile_bytes = rows_of_weight * block_inputs * weight_bytes
        return DecodeLinearConfig(1, block_outputs, block_inputs, 1, num_warps=4, num_stages=_stages(32, tile_bytes))
    block_rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    rows_of_weight = 32 if num_rows <= 4 else 64 if num_rows <= 16 or weight_bytes > 1 else 128
    block_outputs = max(16, min(rows_of_weight // halves, most_outputs))
    block_inputs = max(16, min(16384 // (rows_of_weight * weight_bytes), 256, _power_below(num_inputs), most_inputs))
    programs, steps = -(-num_outputs // block_outputs), -(-num_inputs // block_inputs)
    num_splits = max(1, min(round(NUM_MULTIPROCESSORS / programs), steps, 16))
    tile_bytes = (rows_of_weight * weight_bytes + block_rows * 2) * block_inputs
    return DecodeLinearConfig(
        block_rows, block_outputs, block_inputs, num_splits, num_warps=4, num_stages=_stages(48, tile_bytes)
    )


def _stages(ahead_kib: int, tile_bytes: int) -> int:
    """Buffers for `ahead_kib` of loads ahead of the tile that is computed on."""
    return max(3, min(8, 1 + -(-(ahead_kib << 10) // tile_bytes)))


def decode_linear(
    x: Tensor,
    weight: Tensor | Fp8Weight,
    bias: Tensor | None = None,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    gate: Gate = "silu",
    add_to: Tensor | None = None,
    config: DecodeLinearConfig | None = None,
) -> Tensor:
    """See above. `x` [rows, in] with 1 to 64 dense rows; `weight` [out, in]; `bias` [out]; `norm_weight` [in] and
    `eps` norm x first; `gated` takes the first half of the outputs as the `gate` of the second; `add_to` [rows, out] is
    added to and returned. Otherwise returns [rows, out or out / 2] in x's dtype. Raises ValueError."""
    codes, scales, block = _parts(weight)
    num_rows, num_inputs = x.shape if x.dim() == 2 else (0, 0)
    if not 1 <= num_rows <= MAX_ROWS or x.stride(1) != 1:
        raise ValueError(f"x must be 1 to {MAX_ROWS} dense rows, got {list(x.shape)} with strides {list(x.stride())}")
    if codes.dim() != 2 or codes.shape[1] != num_inputs or not codes.is_contiguous():
        raise ValueError(f"weight must be contiguous [out, {num_inputs}], got {list(codes.shape)}")
    if scales is not None and not scales.is_contiguous():
        raise ValueError(f"weight must have contiguous scales, got strides {list(scales.stride())}")
    if gated and codes.shape[0] % 2:
        raise ValueError(f"weight must have gate and up, an even number of outputs, got {codes.shape[0]}")
    _check_vector("bias", bias, codes.shape[0])
    _check_vector("norm_weight", norm_weight, num_inputs)
    num_outputs = codes.shape[0] // 2 if gated else codes.shape[0]
    if add_to is not None and (add_to.shape != (num_rows, num_outputs) or add_to.stride(1) != 1):
        raise ValueError(f"add_to must be [{num_rows}, {num_outputs}] with dense rows, got {list(add_to.shape)}")
    by_block = block is not None and block != (1, num_inputs)
    c = config or choose_config(
        num_rows, num_outputs, num_inputs, codes.element_size(), gated=gated, scale_block=block if by_block else None
    )
    if by_block:
        assert block is not None
        if block[0] % c.block_outputs or block[1] % c.block_inputs or (gated and num_outputs % c.block_outputs):
            raise ValueError(
                f"weight must have scales of whole runs of {c.block_outputs} x {c.block_inputs}, got blocks of {block}"
            )
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device) if add_to is None else add_to
    parts = sums = out  # not used
    if c.num_splits > 1:
        halves = 2 if gated else 1
        parts = torch.empty(c.num_splits, halves, num_rows, num_outputs, dtype=torch.float32, device=x.device)
        sums = torch.empty(c.num_splits, num_rows, dtype=torch.float32, device=x.device)
    steps_of_split = triton.cdiv(triton.cdiv(num_inputs, c.block_inputs), c.num_splits)
    epilogue = (
        scales if scales is not None and not by_block else codes,
        codes if bias is None else bias,
        out,
        num_rows,
        num_outputs,
        num_inputs,
        out.stride(0),
        eps,
    )
    flags = {
        "HAS_NORM": norm_weight is not None,
        "GATED": 0 if not gated else 1 if gate == "silu" else 2,
        "HAS_SCALES": scales is not None and not by_block,
        "HAS_BIAS": bias is not None,
        "ADDS": add_to is not None,
    }
    inputs = (x, codes, x if norm_weight is None else norm_weight, scales if by_block else codes)
    sizes = {
        "BLOCK_SCALE": by_block,
        "SCALE_OUTPUTS": block[0] if by_block and block is not None else 1,
        "SCALE_INPUTS": block[1] if by_block and block is not None else 1,
        "EVEN": num_inputs % c.block_inputs == 0,
        "BLOCK_OUTPUTS": c.block_outputs,
        "BLOCK_INPUTS": c.block_inputs,
        "STAGES": c.num_stages,
    }
    programs = triton.cdiv(num_outputs, c.block_outputs)
    if c.block_rows == 1:
        if num_rows != 1 or c.num_splits != 1:
            raise ValueError(f"config must not split a gemv and have block_rows for {num_rows} rows, got {c}")
        gemv_kernel[(programs,)](*inputs, *epilogue, **flags, **sizes, num_warps=c.num_warps)
        return out
    if num_rows > c.block_rows:
        raise ValueError(f"config must have block_rows for {num_rows} rows, got {c}")
    skinny_kernel[(programs, c.num_splits)](
        *inputs,
        parts,
        sums,
        *epilogue,
        x.stride(0),
        steps_of_split,
        **flags,
        **sizes,
        SPLIT=c.num_splits > 1,
        BLOCK_ROWS=c.block_rows,
        num_warps=c.num_warps,
    )
    if c.num_splits > 1:
        join_kernel[(triton.cdiv(num_outputs, 128), num_rows)](
            parts, sums, *epilogue, **flags, NUM_SPLITS=c.num_splits, BLOCK_OUTPUTS=128, num_warps=1
        )
    return out


def decode_linear_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    gate: Gate = "silu",
    add_to: Tensor | None = None,
) -> Tensor:
    """The same in float64, without touching `add_to`; `weight` is dense."""
    wide = x.double()
    if norm_weight is not None:
        wide = wide / (wide.square().mean(dim=1, keepdim=True) + eps).sqrt() * norm_weight.double()
    y = wide @ weight.double().t()
    if bias is not None:
        y += bias.double()
    if gated:
        opening, up = y.chunk(2, dim=1)
        opened = opening / (1 + (-opening).exp()) if gate == "silu" else F.gelu(opening, approximate="tanh")
        y = opened * up
    return y if add_to is None else add_to.double() + y


def _parts(weight: Tensor | Fp8Weight) -> tuple[Tensor, Tensor | None, tuple[int, int] | None]:
    if isinstance(weight, Fp8Weight):
        return weight.codes, weight.scales, weight.block
    return weight, None, None


def _check_vector(name: str, vector: Tensor | None, size: int) -> None:
    if vector is not None and (vector.shape != (size,) or not vector.is_contiguous()):
        raise ValueError(f"{name} must be contiguous [{size}], got {list(vector.shape)}")


def _power_below(number: int) -> int:
    return 1 << number.bit_length() - 1


# Products of a decoding layer of Llama-3.1-8B: outputs, inputs, and what is fused into them.
LAYER_8B = {
    "qkv + norm": (6144, 4096, {"norm_weight"}),
    "output + add": (4096, 4096, {"add_to"}),
    "gate_up + norm + silu_mul": (14336, 4096, {"norm_weight", "gated"}),
    "down + add": (4096, 14336, {"add_to"}),
}
WeightMaker = Callable[[int, int, torch.device], Tensor | Fp8Weight]


def benchmark_cases() -> tuple[Case, ...]:
    """The products of a layer of Llama-3.1-8B in bfloat16, fused, and the plain ones as cuBLAS does them."""
    return (*layer_cases("bf16", 2, _dense, (1, 4, 16)), *_cublas_cases((1, 4, 16)))


def layer_cases(label: str, weight_bytes: float, make: WeightMaker, row_counts: tuple[int, ...]) -> tuple[Case, ...]:
    """The products of `LAYER_8B` with weights of `weight_bytes` each from `make(outputs, inputs, device)`."""
    cases = []
    for name, (outputs, inputs, fused) in LAYER_8B.items():
        rows_of_weight = 2 * outputs if "gated" in fused else outputs
        weight_size = int(rows_of_weight * inputs * weight_bytes)
        for num_rows in row_counts:
            call = partial(_fused_call, num_rows, rows_of_weight, inputs, fused, make)
            cases.append(
                Case(
                    name=f"decode_linear {label} {num_rows} x {name}",
                    setup=rotated(call, weight_size),
                    num_bytes=weight_size + 2 * num_rows * (inputs + outputs),
                    target=0.8 if num_rows == 1 else None,
                )
            )
    return tuple(cases)


def _cublas_cases(row_counts: tuple[int, ...]) -> tuple[Case, ...]:
    sizes = {(2 * outputs if "gated" in fused else outputs, inputs) for outputs, inputs, fused in LAYER_8B.values()}
    return tuple(
        Case(
            name=f"cuBLAS bf16 {num_rows} x {outputs} x {inputs}",
            setup=rotated(partial(_cublas_call, num_rows, outputs, inputs), 2 * outputs * inputs),
            num_bytes=2 * (outputs * inputs + num_rows * (inputs + outputs)),
        )
        for outputs, inputs in sorted(sizes)
        for num_rows in row_counts
    )


def _dense(outputs: int, inputs: int, device: torch.device) -> Tensor:
    return torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16)


def _fused_call(
    num_rows: int, outputs: int, inputs: int, fused: set[str], make: WeightMaker, device: torch.device
) -> Callable[[], object]:
    weight = make(outputs, inputs, device)
    x = torch.randn(num_rows, inputs, device=device, dtype=torch.bfloat16)
    norm_weight = torch.randn(inputs, device=device, dtype=torch.bfloat16) if "norm_weight" in fused else None
    add_to = torch.zeros(num_rows, outputs, device=device, dtype=torch.bfloat16) if "add_to" in fused else None
    return partial(decode_linear, x, weight, norm_weight=norm_weight, eps=1e-5, gated="gated" in fused, add_to=add_to)


def _cublas_call(num_rows: int, outputs: int, inputs: int, device: torch.device) -> Callable[[], object]:
    x = torch.randn(num_rows, inputs, device=device, dtype=torch.bfloat16)
    return partial(F.linear, x, _dense(outputs, inputs, device))
