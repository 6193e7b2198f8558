"""Products of the native library on plain tensors, with weights that were packed once.

packer = LinearPacker(library, torch.bfloat16)
packer.add([q, k, v])                               several weights of one input become one, in order
packer.add([gate, up], gate="silu")
contents = aligned_bytes(packer.num_bytes)          or a mapped file (`weight_cache.cached`)
packer.fill(contents)
qkv, gate_up = packer.linears(contents)
y = qkv(x)
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.kernels.cpu.c_interface import (
    Epilogue,
    PackedWeight,
    PackJob,
    Scalar,
    SourceRows,
    WeightKind,
    WeightShape,
)
from slipstream.kernels.cpu.native_ops import GATES
from slipstream.kernels.elementwise.gated import Gate

# A function of a product's results, in the same call. `gelu` is the one with erf.
Activation = Literal["gelu_tanh", "gelu", "relu", "silu"]
ACTIVATIONS: dict[Activation, Epilogue] = {
    "gelu_tanh": Epilogue.GELU_TANH,
    "gelu": Epilogue.GELU,
    "relu": Epilogue.RELU,
    "silu": Epilogue.SILU,
}
SCALARS = {torch.float32: Scalar.F32, torch.bfloat16: Scalar.BF16, torch.float16: Scalar.F16}
KINDS = {torch.float32: WeightKind.F32, torch.bfloat16: WeightKind.BF16}
ALIGNMENT = 64

Bytes = NDArray[np.uint8]


class NativeLinear:
    """`x @ weight.T + bias`, or with a gate `act(first half) * second half` of that, or an activation of it.
    Made by `LinearPacker`.

    A row's result does not depend, in one bit, on the rows beside it.
    """

    __slots__ = (
        "_bias",
        "_contents",
        "_epilogue",
        "_product",
        "_type",
        "_weight",
        "_weight_address",
        "dtype",
        "inputs",
        "outputs",
    )

    def __init__(
        self,
        library: ctypes.CDLL,
        shape: WeightShape,
        contents: Bytes,
        offset: int,
        bias_offset: int | None,
        dtype: torch.dtype,
        gate: Gate | None,
        activation: Activation | None,
    ) -> None:
        self.dtype = dtype
        self.inputs: int = shape.inputs
        self.outputs: int = shape.outputs if gate is None else shape.outputs // 2
        address = contents.ctypes.data
        self._contents = contents  # what the addresses point into
        self._weight = PackedWeight(shape, address + offset)
        self._weight_address = ctypes.addressof(self._weight)
        self._bias = None if bias_offset is None else address + bias_offset
        plain = Epilogue.STORE if activation is None else ACTIVATIONS[activation]
        self._epilogue = int(plain if gate is None else GATES[gate])
        self._type = int(SCALARS[dtype])
        self._product = library.slipstream_product

    @classmethod
    def of_layer(
        cls,
        library: ctypes.CDLL,
        contents: Bytes,
        dtype: torch.dtype,
        *,
        outputs: int,
        inputs: int,
        has_bias: bool,
        gate: Gate | None = None,
        activation: Activation | None = None,
    ) -> NativeLinear:
        """From the contents of a `LinearPacker` that has one layer, of `outputs` x `inputs` weights. Raises ValueError
        if they are of another size."""
        shape = WeightShape(KINDS[dtype], gate is not None, outputs, inputs, 0)
        end = _aligned(packed_bytes(library, shape))
        num_bytes = end + (_aligned(4 * outputs) if has_bias else 0)
        if len(contents) != num_bytes:
            raise ValueError(f"contents: {len(contents)} bytes for {outputs} x {inputs} weights of {num_bytes} bytes")
        return cls(library, shape, contents, 0, end if has_bias else None, dtype, gate, activation)

    def __call__(self, x: Tensor) -> Tensor:
        """[.., inputs] to [.., outputs], both in `dtype`. Raises ValueError."""
        shape = x.shape
        if x.dtype != self.dtype or shape[-1] != self.inputs:
            raise ValueError(f"x: must be [.., {self.inputs}] in {self.dtype}, got {list(shape)} in {x.dtype}")
        if not x.is_contiguous():
            rows = x.reshape(-1, self.inputs)
            if rows.stride(1) != 1:
                rows = rows.contiguous()
            y, num_rows, stride = x.new_empty((*shape[:-1], self.outputs)), rows.shape[0], rows.stride(0)
        else:
            y, rows, stride = x.new_empty((*shape[:-1], self.outputs)), x, self.inputs
            num_rows = x.numel() // stride
        self._product(
            self._weight_address,
            self._bias,
            self._type,
            rows.data_ptr(),
            stride,
            num_rows,
            self._epilogue,
            y.data_ptr(),
            self.outputs,
        )
        return y


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    shape: WeightShape
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...] | None
    bias_offset: int | None
    gate: Gate | None
    activation: Activation | None


class LinearPacker:
    """Puts linear layers into one block of bytes. `dtype`, float32 or bfloat16, is that of activations and of packed
    weights. Raises ValueError for others."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        if dtype not in KINDS:
            raise ValueError(f"dtype: must be one of {', '.join(map(str, KINDS))}, got {dtype}")
        self.num_bytes = 0
        self._library = library
        self._dtype = dtype
        self._places: list[_Place] = []

    @property
    def layout(self) -> list[tuple[int, int, int, str | None]]:
        """What the bytes depend on beside the weights' numbers: for the name of a file with them."""
        return [(place.offset, place.shape.outputs, place.shape.inputs, place.gate) for place in self._places]

    def add(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor] | None = None,
        *,
        gate: Gate | None = None,
        activation: Activation | None = None,
    ) -> None:
        """One layer of `weights` [out, in] each, one below the other, in float32, bfloat16 or float16; `biases` [out]
        each. With a `gate` these are the gate's weight and the other's, of one size, or one weight with both; an
        `activation` is for layers without. Nothing is read before `fill`. Raises ValueError."""
        inputs, outputs = weights[0].shape[1], sum(len(weight) for weight in weights)
        for weight in weights:
            if weight.dim() != 2 or weight.shape[1] != inputs or weight.dtype not in SCALARS or weight.stride(1) != 1:
                raise ValueError(f"weight: {list(weight.shape)} in {weight.dtype} with strides {weight.stride()}")
        if biases is not None and sum(len(bias) for bias in biases) != outputs:
            raise ValueError(f"bias: {[list(bias.shape) for bias in biases]} for {outputs} outputs")
        if gate is not None and activation is not None:
            raise ValueError(f"activation: {activation} with a gate, {gate}")
        if gate is not None and outputs % 2:
            raise ValueError(f"weight: {outputs} outputs are no gate and as many others")
        shape = WeightShape(KINDS[self._dtype], gate is not None, outputs, inputs, 0)
        offset = self._take(self._library.slipstream_packed_bytes(shape))
        bias_offset = None if biases is None else self._take(4 * outputs)
        own_biases = None if biases is None else tuple(biases)
        self._places.append(_Place(offset, shape, tuple(weights), own_biases, bias_offset, gate, activation))

    def fill(self, contents: Bytes) -> None:
        """Packs all layers into `contents` [num_bytes], which is aligned to 64 bytes, with all threads of the team."""
        for place in self._places:
            sources = [
                SourceRows(
                    outputs=len(weight),
                    values=weight.data_ptr(),
                    stride=weight.stride(0),
                    values_type=SCALARS[weight.dtype],
                )
                for weight in place.weights
            ]
            rows = (SourceRows * len(sources))(*sources)
            job = PackJob(place.shape, rows, len(sources), contents.ctypes.data + place.offset)
            self._library.slipstream_pack(job, 1)
            if place.biases is not None and place.bias_offset is not None:
                bias = torch.cat([bias.float() for bias in place.biases]).numpy()
                contents[place.bias_offset : place.bias_offset + bias.nbytes] = bias.view(np.uint8)

    def linears(self, contents: Bytes) -> list[NativeLinear]:
        """The layers in the order in which they were added, once `contents` is filled, here or by another process."""
        return [
            NativeLinear(
                self._library,
                place.shape,
                contents,
                place.offset,
                place.bias_offset,
                self._dtype,
                place.gate,
                place.activation,
            )
            for place in self._places
        ]

    def _take(self, num_bytes: int) -> int:
        offset = self.num_bytes
        self.num_bytes += _aligned(num_bytes)
        return offset


def packed_bytes(library: ctypes.CDLL, shape: WeightShape) -> int:
    """Of a matrix as the kernels read it. Raises ValueError if it has no rows or no columns."""
    if shape.outputs < 1 or shape.inputs < 1:
        raise ValueError(f"weight: {shape.outputs} x {shape.inputs}")
    num_bytes: int = library.slipstream_packed_bytes(shape)
    return num_bytes


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def aligned_bytes(num_bytes: int) -> Bytes:
    """Memory of this process that `LinearPacker.fill` can write."""
    memory = np.empty(num_bytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + num_bytes]
