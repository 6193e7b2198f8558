"""A model over the GPU's ops: the same scores as over those in torch, in steps of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from slipstream.kernels.attention.device_inputs import DeviceInputs
from slipstream.kernels.gpu.triton_ops import TritonOps, check_pool
from slipstream.kernels.ops import TorchOps
from slipstream.kernels.quantization.quantized_weight import quantize_fp8
from slipstream.workers.engine.execution.gpu.gpu_inputs import DecodeInputs
from slipstream.workers.models.gemma import Gemma
from slipstream.workers.models.interface.kv_shape import kv_shape
from slipstream.workers.models.interface.step_arrays import SequenceSlice, StepArrays
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.llama import Llama
from slipstream.workers.models.model_loader import load_model
from slipstream.workers.models.ops_model import OpsModel

PAGE_TOKENS, NUM_PAGES = 8, 32


def scores(model: OpsModel, kv: torch.Tensor) -> list[torch.Tensor]:
    """Of all tokens of a prompt of two chunks, the second beside another sequence that decodes, then of both decoding.
    The pool starts out as whatever it is."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, 40).tolist()
    num_groups = len(model.config.kv.page_groups.windows)
    pages = rng.permutation(NUM_PAGES)[: 6 * num_groups].astype(np.int32).reshape(num_groups, 6)
    mine, other = pages[:, :4], pages[:, 4:]

    def part(start: int, token_ids: list[int], of_groups: NDArray[np.int32]) -> SequenceSlice:
        num_pages = -(-(start + len(token_ids)) // PAGE_TOKENS)
        first, *more = (group[:num_pages].tobytes() for group in of_groups)
        return SequenceSlice(start, tuple(token_ids), first, True, tuple(more))

    steps = [
        [part(0, tokens[:19], mine)],
        [part(0, tokens[30:39], other)],
        [part(9, [tokens[39]], other), part(19, tokens[19:29], mine)],
        [part(10, [3], other), part(29, [4], mine)],
    ]
    found = []
    for slices in steps:
        batch = StepBatch(StepArrays.build(slices, PAGE_TOKENS), PAGE_TOKENS, kv.device)
        logits = model.logits(model.forward(batch, kv))
        assert logits is not None
        found.append(logits.cpu())
    return found


def pool(model: OpsModel, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    shape = kv_shape(model.config, model.tp, NUM_PAGES, PAGE_TOKENS, dtype)
    if dtype in (torch.int8, torch.float8_e4m3fn):
        return torch.zeros(shape, dtype=torch.uint8, device=device).view(dtype)
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


@pytest.mark.parametrize("family", ["llama_biased", "qwen3", "gemma2", "gemma3"])
def test_scores_are_those_of_the_torch_ops(
    device: torch.device, tiny_model_dir: Callable[[str], Path], family: str
) -> None:
    model_dir = tiny_model_dir(family)
    wanted = load_model(model_dir, dtype=torch.float32)
    expected = scores(wanted, pool(wanted, torch.float32, torch.device("cpu")))
    model = on_triton(model_dir, device)
    for got, want in zip(scores(model, pool(model, torch.float32, device)), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_quantised_pages_hold_the_same_as_under_the_torch_ops(
    device: torch.device, tiny_model_dir: Callable[[str], Path], dtype: torch.dtype
) -> None:
    model_dir = tiny_model_dir("llama")
    wanted = load_model(model_dir, dtype=torch.float32)
    expected = scores(wanted, pool(wanted, dtype, torch.device("cpu")))
    model = on_triton(model_dir, device)
    for got, want in zip(scores(model, pool(model, dtype, device)), expected, strict=True):
        # A key at the edge between two codes may be rounded either way.
        assert (got - want).norm() < 0.05 * want.norm()


def test_products_that_take_norm_gate_or_sum_along_are_what_they_are_in_steps(device: torch.device) -> None:
    torch.manual_seed(0)
    triton, plain = TritonOps(), TorchOps()
    for num_rows in (1, 5, 80):
        x, weight = torch.randn(num_rows, 64, device=device), torch.randn(96, 64, device=device) / 8
        gain, bias = torch.rand(64, device=device) + 0.5, torch.randn(96, device=device)
        total = torch.randn(num_rows, 96, device=device)
        for form, tolerance in ((weight, 1e-4), (quantize_fp8(weight), 1e-1)):
            for got, want in (
                (triton.linear(x, form, bias), plain.linear(x, form, bias)),
                (triton.linear(x, form, None, total.clone()), plain.linear(x, form, None, total.clone())),
                (triton.norm_linear(x, gain, 1e-5, form, bias), plain.norm_linear(x, gain, 1e-5, form, bias)),
                (triton.norm_gated(x, gain, 1e-5, form), plain.norm_gated(x, gain, 1e-5, form)),
            ):
                assert (got - want).norm() < tolerance * want.norm()


def test_padding_stores_nothing_and_leaves_the_other_rows_alone(
    device: torch.device, tiny_model_dir: Callable[[str], Path]
) -> None:
    model = on_triton(tiny_model_dir("llama"), device)
    pages = np.arange(6, dtype=np.int32)
    slices = [SequenceSlice(11, (7,), pages[:2].tobytes(), True), SequenceSlice(20, (9,), pages[2:5].tobytes(), True)]
    arrays = StepArrays.build(slices, PAGE_TOKENS)
    memory = DecodeInputs(6, NUM_PAGES, device)
    memory.load(arrays, 5)
    kv = torch.randn(pool(model, torch.float32, device).shape, device=device)
    before = kv.clone()

    def run(groups: tuple[DeviceInputs, ...], num_rows: int, kv: torch.Tensor) -> torch.Tensor:
        decoder, (inputs,) = model.decoder, groups
        step = decoder.ops.begin_device_step(inputs, decoder.attention, kv)  # type: ignore[attr-defined]
        return decoder.run(memory.token_ids(num_rows), step)

    padded = run(memory.inputs(5, 64), 5, kv)
    changed = (kv != before).flatten(4).any(4).nonzero()[:, 1].unique().tolist()
    assert changed == [1, 4]  # the last pages of the two
    alone = run(memory.inputs(2, 64), 2, before)
    torch.testing.assert_close(padded[:2], alone, atol=1e-4, rtol=1e-4)


def test_more_query_heads_than_a_program_takes_are_refused_before_the_first_step(
    device: torch.device, tiny_model_dir: Callable[[str], Path]
) -> None:
    model = load_model(tiny_model_dir("llama"), dtype=torch.float32)
    kv = pool(model, torch.float32, device)
    check_pool(kv, model.decoder.attention)
    attention = model.decoder.attention
    with pytest.raises(ValueError, match="serve up to 32 each"):
        check_pool(kv, replace(attention, num_heads=33 * attention.num_kv_heads))


def on_triton(model_dir: Path, device: torch.device) -> OpsModel:
    model = load_model(model_dir, dtype=torch.float32, device=device)
    model.decoder.ops = TritonOps()
    if device.type == "cpu":  # interpreted: the loader has packed the weights for the CPU's own products
        unpack(model)
    return model


def unpack(model: OpsModel) -> None:
    assert isinstance(model.decoder, Llama | Gemma)
    weights = model.decoder.weights
    for layer in weights.layers:
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
            object.__setattr__(linear, "weight", linear.weight.to_dense())  # type: ignore[union-attr]
    object.__setattr__(weights, "lm_head", weights.lm_head.to_dense())  # type: ignore[union-attr]
