"""Quantised checkpoints, stored as the libraries of the field do, and quantisation while a model is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.kernels.cpu.native_library import native_library
from slipstream.kernels.quantization.quantized_weight import Fp8Weight, Int4Weight, Int8Weight, dequantize
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.stored_quantization import AwqStored, Fp8Stored, GptqStored
from slipstream.workers.models.directory.weight_files import WeightFiles
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.models.model_loader import load_model
from slipstream.workers.models.native_model import load_native
from slipstream.workers.models.sharding.rank_share import LinearShare, RankShare
from slipstream.workers.models.sharding.tensor_check import check_ranks
from slipstream.workers.models.weights.checkpoint import open_checkpoint
from slipstream.workers.models.weights.quantized_reader import QuantizedReader
from tests.support.kernels.stored_codes import awq_tensors, gptq_tensors
from tests.support.workers.paged_run import PagedRun

GROUP = 16
FP8_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
FP8_TENSOR = {"quant_method": "fp8", "activation_scheme": "static"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
        }
    },
    "ignore": ["lm_head"],
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
SCHEMES: dict[str, dict[str, Any]] = {
    "fp8 by block": FP8_BLOCKS,
    "fp8 by tensor": FP8_TENSOR,
    "compressed-tensors": COMPRESSED,
    "awq": AWQ,
    "gptq": GPTQ,
    "gptq_v2": GPTQ | {"checkpoint_format": "gptq_v2"},
    "gptq in activation order": GPTQ | {"desc_act": True},
}


def stored_fp8(name: str, weight: Tensor, scheme: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a projection, and the matrix that they stand for."""
    if "weight_block_size" in scheme:
        size = scheme["weight_block_size"][0]
        blocks = weight.unflatten(1, (-1, size)).unflatten(0, (-1, size))
        scale = blocks.abs().amax(dim=(1, 3)) / 448
        wide = scale.repeat_interleave(size, 0).repeat_interleave(size, 1)
        scale_name = "weight_scale_inv"
    elif scheme == COMPRESSED:
        scale = wide = (weight.abs().amax(dim=1, keepdim=True) / 448).bfloat16()
        scale_name = "weight_scale"
    else:
        scale = wide = weight.abs().amax() / 448
        scale_name = "weight_scale"
    codes = (weight / wide.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {f"{name}.weight": codes, f"{name}.{scale_name}": scale}, codes.float() * wide.float()


def stored_int4(name: str, weight: Tensor, scheme: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    num_inputs, group_size = weight.shape[1], scheme["group_size"]
    groups = torch.arange(num_inputs) // group_size
    if scheme.get("desc_act"):
        groups = groups[torch.randperm(num_inputs, generator=torch.Generator().manual_seed(num_inputs))]
    by_group = torch.stack([weight[:, groups == group] for group in range(num_inputs // group_size)])
    low, high = by_group.amin(dim=2), by_group.amax(dim=2)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(0, 15).long()  # [groups, out]
    codes = ((weight.t() / scales[groups].float()).round() + zeros[groups]).clamp(0, 15).long()  # [in, out]
    tensors = {f"{name}.scales": scales}
    if scheme["quant_method"] == "awq":
        packed = awq_tensors(codes, zeros)
    else:
        packed = gptq_tensors(codes, zeros, minus_one="checkpoint_format" not in scheme)
        tensors[f"{name}.g_idx"] = groups.to(torch.int32)
    tensors |= {f"{name}.qweight": packed[0].contiguous(), f"{name}.qzeros": packed[1]}
    return tensors, ((codes - zeros[groups]) * scales[groups].float()).t()


@pytest.fixture
def quantized_dirs(
    tiny_model_dir: Callable[[str], Path], tmp_path: Path
) -> Callable[[dict[str, Any]], tuple[Path, Path]]:
    """`quantized_dirs(scheme)`: a checkpoint quantised so, and one that holds the numbers it stands for."""

    def build(scheme: dict[str, Any]) -> tuple[Path, Path]:
        stored, plain = tmp_path / "stored", tmp_path / "plain"
        for directory in (stored, plain):
            shutil.copytree(tiny_model_dir("llama"), directory)
        tensors = load_file(plain / "model.safetensors")
        kept, wide = {}, {}
        for name, tensor in tensors.items():
            if name.endswith("_proj.weight"):
                store = stored_fp8 if scheme["quant_method"] in ("fp8", "compressed-tensors") else stored_int4
                parts, wide[name] = store(name.removesuffix(".weight"), tensor.float(), scheme)
                kept |= parts
            else:
                kept[name] = wide[name] = tensor
        save_file(kept, stored / "model.safetensors")
        save_file({name: tensor.contiguous() for name, tensor in wide.items()}, plain / "model.safetensors")
        config = json.loads((stored / "config.json").read_text())
        (stored / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
        return stored, plain

    return build


def logits(model_dir: Path, **options: Any) -> Tensor:
    scores = PagedRun(load_model(model_dir, dtype=torch.float32, **options)).step({"a": [3, 1, 2, 5]})
    assert scores is not None
    return scores


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("keep_codes", [False, True], ids=["widened", "codes"])
def test_a_quantised_checkpoint_computes_what_its_numbers_do(
    quantized_dirs: Callable[[dict[str, Any]], tuple[Path, Path]], scheme: dict[str, Any], keep_codes: bool
) -> None:
    stored, plain = quantized_dirs(scheme)
    model = load_model(stored, dtype=torch.float32, keep_codes=keep_codes)
    assert isinstance(model.decoder.weights.layers[0].qkv.weight, Tensor) is not keep_codes
    torch.testing.assert_close(logits(stored, keep_codes=keep_codes), logits(plain), atol=1e-4, rtol=1e-4)


NATIVE_SCHEMES = {
    "fp8 by block of 32": FP8_BLOCKS | {"weight_block_size": [32, 32]},
    "awq in groups of 32": AWQ | {"group_size": 32},
    "gptq in groups of 32": GPTQ | {"group_size": 32},
    "gptq in activation order of 32": GPTQ | {"group_size": 32, "desc_act": True},
    **SCHEMES,
}


@pytest.mark.parametrize("name", NATIVE_SCHEMES)
def test_native_kernels_compute_what_the_numbers_of_a_quantised_checkpoint_do(
    quantized_dirs: Callable[[dict[str, Any]], tuple[Path, Path]], name: str
) -> None:
    """Those of 16 inputs a scale and of another order widen the weights, the others read codes."""
    library = native_library()
    if library is None:
        pytest.skip("no native kernels here")
    stored, plain = quantized_dirs(NATIVE_SCHEMES[name])
    model = load_native(stored, library, dtype=torch.float32, page_tokens=8)
    scores = PagedRun(model).step({"a": [3, 1, 2, 5]})
    assert scores is not None
    torch.testing.assert_close(scores, logits(plain), atol=2e-4, rtol=2e-4)
    kinds = {slot.form.kind for slot in model.weights.linears}
    assert (len(kinds) == 1) is (name in ("fp8 by block", "awq", "gptq", "gptq_v2") or "activation order" in name)


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_native_kernels_quantise_a_plain_checkpoint_as_torch_does(
    tiny_model_dir: Callable[[str], Path], kind: Any, family: str
) -> None:
    library = native_library()
    if library is None:
        pytest.skip("no native kernels here")
    directory = tiny_model_dir(family)
    model = load_native(directory, library, dtype=torch.float32, page_tokens=8, quantization=kind)
    scores = PagedRun(model).step({"a": [3, 1, 2, 5]})
    assert scores is not None
    torch.testing.assert_close(scores, logits(directory, quantization=kind), atol=2e-4, rtol=2e-4)
    assert not torch.equal(scores, logits(directory))


@pytest.mark.parametrize("scheme", [FP8_BLOCKS, FP8_TENSOR, COMPRESSED, AWQ, GPTQ], ids=lambda s: s["quant_method"])
def test_the_shares_of_two_ranks_are_the_whole(
    quantized_dirs: Callable[[dict[str, Any]], tuple[Path, Path]], scheme: dict[str, Any]
) -> None:
    stored, plain = quantized_dirs(scheme)
    wide = load_file(plain / "model.safetensors")
    check_ranks(ModelConfig.read(stored), WeightFiles.read(stored), 2)
    for rank in range(2):
        share, config = share_of(stored, rank)
        with open_checkpoint(stored) as checkpoint:
            assert config.quantization is not None
            reader = QuantizedReader(checkpoint, config.quantization)
            for linear in (share.layers[1].qkv, share.layers[1].output, share.layers[1].gate_up, share.layers[1].down):
                weight = reader.read(linear)
                assert weight is not None
                torch.testing.assert_close(dequantize(weight), expected_share(linear, wide))


def share_of(model_dir: Path, rank: int, size: int = 2) -> tuple[RankShare, ModelConfig]:
    config = ModelConfig.read(model_dir)
    group: Any = object()  # nothing is sent here
    return RankShare.of(config, TensorParallel(rank, size, group)), config


def expected_share(linear: LinearShare, wide: dict[str, Tensor]) -> Tensor:
    return torch.cat([wide[part.name][part.rows, part.columns or slice(None)] for part in linear.weights])


@pytest.mark.parametrize(
    ("scheme", "sentence"),
    [
        (FP8_BLOCKS | {"weight_block_size": [64, 64]}, "columns 32 to 64 of 64 cut a quantised run of 64"),
        (SCHEMES["gptq in activation order"], "activation order"),
    ],
    ids=["block", "activation order"],
)
def test_a_share_that_cuts_a_run_is_refused(
    quantized_dirs: Callable[[dict[str, Any]], tuple[Path, Path]], scheme: dict[str, Any], sentence: str
) -> None:
    stored, _ = quantized_dirs(FP8_BLOCKS if scheme["quant_method"] == "fp8" else scheme)
    config = json.loads((stored / "config.json").read_text())
    (stored / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    share, model = share_of(stored, rank=1)
    with open_checkpoint(stored) as checkpoint:
        assert model.quantization is not None
        with pytest.raises(ModelError, match=sentence):
            QuantizedReader(checkpoint, model.quantization).read(share.layers[0].output)
    files = WeightFiles.read(stored)
    check_ranks(model, files, 1)
    with pytest.raises(ModelError, match=r"cut a quantised run of 64|activation order"):
        check_ranks(model, files, 2)


def test_what_the_checkpoint_left_unquantised_stays_so(
    quantized_dirs: Callable[[dict[str, Any]], tuple[Path, Path]],
) -> None:
    stored, plain = quantized_dirs(AWQ)
    tensors, wide = load_file(stored / "model.safetensors"), load_file(plain / "model.safetensors")
    name = "model.layers.0.mlp.down_proj"
    for kind in ("qweight", "qzeros", "scales"):
        del tensors[f"{name}.{kind}"]
    tensors[f"{name}.weight"] = wide[f"{name}.weight"]
    save_file(tensors, stored / "model.safetensors")
    model = load_model(stored, dtype=torch.float32, keep_codes=True)
    assert isinstance(model.decoder.weights.layers[0].down.weight, Tensor)
    assert isinstance(model.decoder.weights.layers[1].down.weight, Int4Weight)
    torch.testing.assert_close(logits(stored), logits(plain), atol=1e-4, rtol=1e-4)


def test_a_missing_tensor_is_named(quantized_dirs: Callable[[dict[str, Any]], tuple[Path, Path]]) -> None:
    stored, _ = quantized_dirs(GPTQ)
    tensors = load_file(stored / "model.safetensors")
    del tensors["model.layers.2.self_attn.k_proj.qzeros"]
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(ModelError, match=r"tensor model\.layers\.2\.self_attn\.k_proj\.qzeros is missing"):
        load_model(stored)


@pytest.mark.parametrize(
    ("kind", "form", "tolerance"), [("fp8", Fp8Weight, 0.05), ("int8", Int8Weight, 0.02), ("int4", Int4Weight, 0.2)]
)
def test_a_plain_checkpoint_is_quantised_while_it_is_loaded(
    tiny_model_dir: Callable[[str], Path], kind: Any, form: type, tolerance: float
) -> None:
    directory = tiny_model_dir("qwen2")
    model = load_model(directory, quantization=kind, keep_codes=True)
    plain = load_model(directory)
    for layer, plain_layer in zip(model.decoder.weights.layers, plain.decoder.weights.layers, strict=True):
        for name in ("qkv", "output", "gate_up", "down"):
            weight = getattr(layer, name).weight
            assert isinstance(weight, form)
            dense = getattr(plain_layer, name).weight.to_dense()
            error = (dequantize(weight) - dense).norm() / dense.norm()  # type: ignore[arg-type]
            assert 1e-4 < error < tolerance
    torch.testing.assert_close(
        logits(directory, quantization=kind, keep_codes=True),
        logits(directory, quantization=kind, keep_codes=False),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (FP8_BLOCKS, Fp8Stored((16, 16))),
        (FP8_TENSOR, Fp8Stored(None)),
        (COMPRESSED, Fp8Stored(None)),
        (AWQ, AwqStored(16)),
        (AWQ | {"group_size": -1}, AwqStored(None)),
        (GPTQ, GptqStored(16, True)),
        (GPTQ | {"checkpoint_format": "gptq_v2"}, GptqStored(16, False)),
    ],
)
def test_schemes_of_the_config(
    tiny_model_dir: Callable[[str], Path], tmp_path: Path, scheme: dict[str, Any], expected: object
) -> None:
    assert read_config(tiny_model_dir("llama"), tmp_path, scheme).quantization == expected


@pytest.mark.parametrize(
    ("scheme", "sentence"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"quant_method: 'bitsandbytes' is not supported"),
        (AWQ | {"bits": 8}, r"bits: 8 is not supported, only 4"),
        (AWQ | {"version": "gemv"}, r"version: 'gemv' is not supported"),
        (AWQ | {"zero_point": False}, r"zero_point: only weights with zero points"),
        (GPTQ | {"checkpoint_format": "marlin"}, r"checkpoint_format: 'marlin' is not supported"),
        (GPTQ | {"lm_head": True}, r"lm_head: a quantised output layer"),
        (GPTQ | {"dynamic": {"-:mlp": {}}}, r"dynamic: layers that are quantised differently"),
        (GPTQ | {"group_size": 0}, r"group_size: must be a positive integer, got 0"),
        (FP8_BLOCKS | {"weight_block_size": [128]}, r"weight_block_size: must be two positive integers, got \[128\]"),
        (FP8_TENSOR | {"fmt": "e5m2"}, r"fmt: 'e5m2' is not supported"),
        (COMPRESSED | {"format": "pack-quantized"}, r"format: 'pack-quantized' is not supported"),
        (COMPRESSED | {"config_groups": {}}, r"config_groups: must hold one group"),
        (
            COMPRESSED | {"config_groups": {"a": {"weights": {"type": "int", "num_bits": 8}}}},
            r"config_groups\.a\.weights\.type: 8 bits of int are not supported",
        ),
        ("fp8", r"quantization_config: must be an object, got 'fp8'"),
    ],
)
def test_what_is_not_supported_is_said_in_a_sentence(
    tiny_model_dir: Callable[[str], Path], tmp_path: Path, scheme: object, sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        read_config(tiny_model_dir("llama"), tmp_path, scheme)


def read_config(model_dir: Path, folder: Path, scheme: object) -> ModelConfig:
    config = json.loads((model_dir / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    return ModelConfig.read(folder)
