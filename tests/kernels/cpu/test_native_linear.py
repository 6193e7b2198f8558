"""Products of the native library on plain tensors, against torch in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.cpu.native_library import native_library
from slipstream.kernels.cpu.native_linear import Activation, LinearPacker, aligned_bytes
from slipstream.kernels.elementwise.gated import Gate
from slipstream.workers.models.weights.weight_cache import cached

pytestmark = pytest.mark.skipif(native_library() is None, reason="no native kernels")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def close(y: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[y.dtype]
    assert (y.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_layers_of_one_block_multiply_and_gate(dtype: torch.dtype, stored: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(outputs, 50).to(stored) for outputs in (70, 30, 44, 44)]
    bias = torch.randn(70)
    packer = LinearPacker(native_library(), dtype)
    packer.add(weights[:2], [bias, torch.zeros(30)])
    packer.add(weights[2:], gate="gelu_tanh")
    packer.add([torch.cat(weights[2:])], gate="silu")
    contents = aligned_bytes(packer.num_bytes)
    packer.fill(contents)
    both, gelu, silu = packer.linears(contents)
    for shape in ((1, 50), (2, 3, 50), (130, 50), (0, 50)):
        x = torch.randn(shape).to(dtype)
        wide, in_type = x.double(), [weight.to(dtype).double() for weight in weights]
        product = wide @ torch.cat(in_type[:2]).t()
        product[..., :70] += bias
        assert both(x).shape == (*shape[:-1], 100)
        close(both(x), product)
        gate, up = wide @ in_type[2].t(), wide @ in_type[3].t()
        close(gelu(x), F.gelu(gate, approximate="tanh") * up)
        close(silu(x), F.silu(gate) * up)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "relu", "silu"])
def test_an_activation_is_that_of_torch(dtype: torch.dtype, activation: Activation) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(75, 50).to(dtype), torch.randn(75)
    packer = LinearPacker(native_library(), dtype)
    packer.add([weight], [bias], activation=activation)
    contents = aligned_bytes(packer.num_bytes)
    packer.fill(contents)
    (linear,) = packer.linears(contents)
    for rows in (1, 130):
        x = torch.randn(rows, 50).to(dtype)
        product = x.double() @ weight.double().t() + bias
        own = F.gelu(product, approximate="tanh") if activation == "gelu_tanh" else getattr(F, activation)(product)
        close(linear(x), own)


def test_rows_of_a_wider_tensor_are_read_where_they_are() -> None:
    weight, wide = torch.randn(8, 16), torch.randn(5, 40)
    packer = LinearPacker(native_library(), torch.float32)
    packer.add([weight])
    contents = aligned_bytes(packer.num_bytes)
    packer.fill(contents)
    (linear,) = packer.linears(contents)
    x = wide[:, 3:19]
    assert torch.equal(linear(x), linear(x.contiguous()))
    assert torch.equal(linear(wide.t()[:16].t()), linear(wide[:, :16].contiguous()))


def test_what_one_process_has_packed_another_maps(tmp_path: Path) -> None:
    weight, x = torch.randn(24, 16), torch.randn(3, 16)
    results = []
    for numbers in (weight, torch.zeros_like(weight)):  # the second is not packed
        packer = LinearPacker(native_library(), torch.float32)
        packer.add([numbers])
        (linear,) = packer.linears(cached(tmp_path, b"k" * 32, packer.num_bytes, packer.fill))
        results.append(linear(x))
    assert torch.equal(*results)


@pytest.mark.parametrize("gate", [None, "silu"])
def test_what_does_not_fit_is_refused(gate: Gate | None) -> None:
    packer = LinearPacker(native_library(), torch.float32)
    with pytest.raises(ValueError, match="weight:"):
        packer.add([torch.zeros(8, 16), torch.zeros(8, 15)], gate=gate)
    with pytest.raises(ValueError, match="bias:"):
        packer.add([torch.zeros(8, 16)], [torch.zeros(7)], gate=gate)
    packer.add([torch.zeros(8, 16)], gate=gate)
    (linear,) = packer.linears(aligned_bytes(packer.num_bytes))
    with pytest.raises(ValueError, match="x: must be"):
        linear(torch.zeros(2, 16, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="x: must be"):
        linear(torch.zeros(2, 15))
    with pytest.raises(ValueError, match="dtype"):
        LinearPacker(native_library(), torch.float16)
