"""The fused norm, rotation and KV write against the torch forms on float32 numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipstream.kernels.attention.gpu.rope_kv_write import rope_kv_write, rope_table
from slipstream.kernels.elementwise.rms_norm import rms_norm
from slipstream.kernels.elementwise.rotary import rotary_angles, rotary_embedding
from slipstream.kernels.pages.kv_pages import kv_rows, write_kv
from slipstream.kernels.pages.quantized_kv import codes_and_scales, dequantize_kv, head_bytes, write_quantized_kv

EPS = 1e-6
NUM_PAGES = 6
HALF_STEP = {
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.int8: 8e-3,
    torch.float8_e4m3fn: 7e-2,
}


def poisoned_layer(
    dtype: torch.dtype, kv_heads: int, page_tokens: int, head_dim: int, quantized: bool = False
) -> Tensor:
    if quantized:
        return torch.full((NUM_PAGES, kv_heads, head_bytes(page_tokens, head_dim)), 0x55, dtype=torch.uint8).view(dtype)
    return torch.full((NUM_PAGES, kv_heads, 2, page_tokens, head_dim), 7.0, dtype=dtype)


class Step:
    """Random tokens at scattered slots; the references keep to float32 until they store."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        *,
        num_tokens: int = 5,
        heads: int = 6,
        kv_heads: int = 2,
        head_dim: int = 32,
        page_tokens: int = 8,
        qk_norm: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.heads, self.head_dim, self.page_tokens = heads, head_dim, page_tokens
        self.qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * head_dim).to(dtype)
        self.positions = torch.randint(0, 100_000, (num_tokens,))
        self.inv_freq = 10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
        self.slots = torch.randperm(NUM_PAGES * page_tokens)[:num_tokens]
        self.gains = torch.randn(heads + kv_heads, head_dim).to(dtype) if qk_norm else None
        self.before = poisoned_layer(kv_dtype or dtype, kv_heads, page_tokens, head_dim, kv_dtype is not None)
        self.device = device

    def run(self) -> tuple[Tensor, Tensor]:
        layer = self.before.clone().to(self.device)
        cos, sin = rope_table(self.positions, self.inv_freq, 1.25)
        q = torch.full((len(self.qkv), self.heads, self.head_dim), float("nan"), dtype=self.qkv.dtype)
        cos, sin, q, qkv, slots = (x.to(self.device) for x in (cos, sin, q, self.qkv, self.slots))
        gains = None if self.gains is None else self.gains.to(self.device)
        rope_kv_write(qkv, cos, sin, slots, layer, self.heads, qk_norm=gains, eps=EPS, q=q)
        return q.cpu(), layer.cpu()

    def expected(self) -> tuple[Tensor, Tensor]:
        layer = self.before.clone()
        qk, values = self.qkv.float().unflatten(1, (-1, self.head_dim)).tensor_split((-layer.shape[1],), dim=1)
        if self.gains is not None:
            qk = rms_norm(qk, self.gains.float(), EPS)
        qk = rotary_embedding(qk, *rotary_angles(self.positions, self.inv_freq, 1.25, torch.float32))
        kept = self.slots >= 0
        keys, values, slots = qk[kept, self.heads :], values[kept], self.slots[kept]
        if layer.dim() == 3:
            write_quantized_kv(layer, keys, values, slots)
        else:
            write_kv(
                layer,
                keys.to(layer.dtype),
                values.to(layer.dtype),
                kv_rows(slots, layer.shape[1], self.page_tokens),
            )
        return qk[:, : self.heads], layer

    def check(self) -> None:
        q, layer = self.run()
        expected_q, expected_layer = self.expected()
        torch.testing.assert_close(q.float(), expected_q, atol=1e-5, rtol=HALF_STEP[q.dtype])
        written = self.written()
        if layer.dim() == 3:
            # A number on the border between two codes may fall to either side.
            codes, scales = codes_and_scales(layer, self.head_dim)
            expected_codes, expected_scales = codes_and_scales(expected_layer, self.head_dim)
            torch.testing.assert_close(scales[written], expected_scales[written], atol=0, rtol=1e-5)
            got = dequantize_kv(codes, scales, torch.float32)[written]
            expected = dequantize_kv(expected_codes, expected_scales, torch.float32)[written]
            step = expected.abs().amax(-1, keepdim=True) * HALF_STEP[layer.dtype] + 1e-5
            assert ((got - expected).abs() <= step).all()
            same = codes.view(torch.uint8)[written] == expected_codes.view(torch.uint8)[written]
            assert same.sum() >= 0.95 * same.numel()
            assert torch.equal(codes.view(torch.uint8)[~written], expected_codes.view(torch.uint8)[~written])
            assert torch.equal(scales[~written], expected_scales[~written])
        else:
            got, expected = layer[written].float(), expected_layer[written].float()
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=HALF_STEP[layer.dtype])
            assert torch.equal(layer[~written], expected_layer[~written])

    def written(self) -> Tensor:
        """[pages, kv_heads, 2, page_tokens]"""
        slots = torch.zeros(NUM_PAGES * self.page_tokens, dtype=torch.bool)
        slots[self.slots[self.slots >= 0]] = True
        return slots.view(NUM_PAGES, 1, 1, -1).expand(-1, self.before.shape[1], 2, -1)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_queries_keys_and_values_equal_the_torch_forms(dtype: torch.dtype, qk_norm: bool, device: torch.device) -> None:
    Step(device, dtype, qk_norm=qk_norm).check()


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_pages_equal_the_torch_forms(
    kv_dtype: torch.dtype, dtype: torch.dtype, qk_norm: bool, device: torch.device
) -> None:
    Step(device, dtype, kv_dtype, qk_norm=qk_norm).check()


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_values_have_the_very_codes_of_the_torch_form(kv_dtype: torch.dtype, device: torch.device) -> None:
    step = Step(device, torch.bfloat16, kv_dtype, num_tokens=20)
    (_, layer), (_, expected) = step.run(), step.expected()
    codes, scales = codes_and_scales(layer, step.head_dim)
    expected_codes, expected_scales = codes_and_scales(expected, step.head_dim)
    assert torch.equal(codes[:, :, 1].view(torch.uint8), expected_codes[:, :, 1].view(torch.uint8))
    assert torch.equal(scales[:, :, 1], expected_scales[:, :, 1])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_tokens"), [(4, 4, 64, 16), (14, 2, 80, 8), (3, 1, 256, 32), (3, 1, 96, 64)]
)
@pytest.mark.parametrize("kv_dtype", [None, torch.int8])
def test_head_shapes(
    kv_dtype: torch.dtype | None, heads: int, kv_heads: int, head_dim: int, page_tokens: int, device: torch.device
) -> None:
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "page_tokens": page_tokens}
    Step(device, kv_dtype=kv_dtype, qk_norm=True, **shape).check()


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn])
def test_padding_tokens_write_nothing(kv_dtype: torch.dtype | None, device: torch.device) -> None:
    step = Step(device, kv_dtype=kv_dtype, num_tokens=4)
    step.slots[1:3] = -1
    step.check()
    step.slots[:] = -1
    step.check()


def test_many_tokens_share_programs(device: torch.device) -> None:
    step = Step(device, num_tokens=515, heads=4, kv_heads=1, head_dim=256, page_tokens=128)
    step.slots = step.slots.int()
    step.check()


def test_rows_of_zeros_get_codes_of_zero(device: torch.device) -> None:
    step = Step(device, kv_dtype=torch.int8)
    step.qkv.zero_()
    step.check()


@pytest.mark.parametrize("argument", ["qkv", "cos", "sin", "slots", "kv_layer", "num_heads", "qk_norm", "q"])
def test_wrong_arguments_are_refused_by_name(argument: str, device: torch.device) -> None:
    arguments = {
        "qkv": torch.zeros(3, 8 * 32, device=device),
        "cos": torch.zeros(3, 16, device=device),
        "sin": torch.zeros(3, 16, device=device),
        "slots": torch.zeros(3, dtype=torch.int32, device=device),
        "kv_layer": torch.zeros(2, 2, 2, 8, 32, device=device),
        "num_heads": 4,
    }
    wrong = {
        "qkv": torch.zeros(4, 8 * 32, device=device),
        "cos": torch.zeros(3, 16, device=device).double(),
        "sin": torch.zeros(2, 16, device=device),
        "slots": torch.zeros(3, device=device),
        "kv_layer": torch.zeros(2, 2, 2, 8, 64, device=device),
        "num_heads": 5,
        "qk_norm": torch.zeros(4, 32, device=device),
        "q": torch.zeros(3, 32, 4, device=device),
    }
    if argument == "num_heads":
        arguments["qkv"] = torch.zeros(3, 9 * 32, device=device)
    with pytest.raises(ValueError, match=f"^{argument}: "):
        rope_kv_write(**arguments | {argument: wrong[argument]})
