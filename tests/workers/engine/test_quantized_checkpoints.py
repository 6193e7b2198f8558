"""Checkpoints with a `quantization_config`, from the directory to tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.kernels.quantization.quantized_weight import dequantize, quantize_fp8, quantize_int4, unpack_codes
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import build_engine, build_runner, engine_limits
from slipstream.workers.models.directory.json_keys import ModelError
from tests.support.kernels.stored_codes import awq_tensors, gptq_tensors
from tests.support.workers.engine_driver import make_request, tokens_of

GROUP = 32
SCHEMES: dict[str, dict[str, Any]] = {
    "fp8": {"activation_scheme": "dynamic", "weight_block_size": [GROUP, GROUP]},
    "awq": {"bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "gptq": {"bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
}


def stored(name: str, weight: Tensor, method: str) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a projection as `method` keeps them, and the matrix that they stand for."""
    if method == "fp8":
        fp8 = quantize_fp8(weight, (GROUP, GROUP))
        return {f"{name}.weight": fp8.codes, f"{name}.weight_scale_inv": fp8.scales}, dequantize(fp8)
    int4 = quantize_int4(weight, GROUP)
    codes, zeros = unpack_codes(int4.codes).t(), int4.zeros.t()
    qweight, qzeros = awq_tensors(codes, zeros) if method == "awq" else gptq_tensors(codes, zeros, minus_one=True)
    tensors = {"qweight": qweight.contiguous(), "qzeros": qzeros, "scales": int4.scales.t().contiguous()}
    return {f"{name}.{kind}": tensor for kind, tensor in tensors.items()}, dequantize(int4)


def quantized_copy(source: Path, folder: Path, method: str) -> tuple[Path, Path]:
    """A checkpoint quantised by `method`, and one that holds the numbers it stands for."""
    kept, wide = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        kept[name] = wide[name] = tensor
        if name.endswith("_proj.weight"):
            del kept[name]
            tensors, wide[name] = stored(name.removesuffix(".weight"), tensor.float(), method)
            kept |= tensors
    for directory, tensors in ((folder / method, kept), (folder / f"{method}-wide", wide)):
        shutil.copytree(source, directory)
        save_file(tensors, directory / "model.safetensors")
    path = folder / method / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": {"quant_method": method, **SCHEMES[method]}}
    path.write_text(json.dumps(config))
    return folder / method, folder / f"{method}-wide"


def generated(model_dir: Path, **settings: Any) -> list[list[int]]:
    config = EngineConfig(dtype="float32", num_pages=64, num_threads=1, **settings)
    limits = engine_limits(model_dir, config)
    engine = build_engine(limits, build_runner(model_dir, config, limits.num_pages))
    prompts = [range(3, 3 + 11 * n) for n in (1, 3, 5)]
    requests = [make_request(f"r{n}", prompt, max_tokens=12, ignore_eos=True) for n, prompt in enumerate(prompts)]
    return tokens_of(engine, *requests)


@pytest.mark.parametrize("method", SCHEMES)
def test_a_quantised_checkpoint_generates_what_its_numbers_do(
    method: str, tiny_model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    directory, wide = quantized_copy(tiny_model_dir("llama"), tmp_path, method)
    expected = generated(wide, weight_cache_dir=None)
    assert generated(directory, cpu_kernels="off") == expected
    cache = str(tmp_path / "cache")
    assert generated(directory, weight_cache_dir=cache) == expected
    assert generated(directory, weight_cache_dir=cache) == expected  # mapped, not packed
    assert generated(directory, weight_cache_dir=cache, kv_cache_dtype="int8")
    assert len(list((tmp_path / "cache").glob("*.weights"))) == 1


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("form", ["fp8", "int8", "int4"])
def test_a_plain_checkpoint_is_quantised_where_the_engine_is_asked_to(
    form: Any, kernels: Any, tiny_model_dir: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, cache = tiny_model_dir("llama"), tmp_path / "cache"
    plain = generated(directory, weight_cache_dir=str(cache))
    quantized = generated(directory, weight_cache_dir=str(cache), cpu_kernels=kernels, quantization=form)
    assert [len(tokens) for tokens in quantized] == [len(tokens) for tokens in plain]
    sizes = sorted(path.stat().st_size for path in cache.glob("*.weights"))
    assert len(sizes) == (2 if kernels == "auto" else 1)
    assert kernels == "off" or sizes[0] < 0.6 * sizes[1]
    assert ("quantised weights are widened to float32" in caplog.text) is (kernels == "off")


def test_an_unknown_method_is_refused_in_a_sentence(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(tiny_model_dir("llama"), directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(ModelError, match=r"quant_method: 'hqq' is not supported, only fp8, compressed-tensors, awq"):
        engine_limits(directory, EngineConfig(model_impl="native"))
