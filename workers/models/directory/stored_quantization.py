"""How a checkpoint's linear layers are quantised: what `quantization_config` of config.json says. Free of torch.

    quant_method         stored by                       form
    fp8                  transformers, DeepSeek, vLLM    e4m3 with a scale for each block, or for each tensor
    compressed-tensors   llm-compressor                  e4m3 with a scale for each block, channel or tensor
    awq                  AutoAWQ, version gemm           4 bits in groups
    gptq                 AutoGPTQ, GPTQModel             4 bits in groups, maybe in activation order

Which modules were left as they are (`modules_to_not_convert`, `ignore` and their like) need not be read here: it shows
in the tensors that the file holds for them. Scales of activations (`input_scale`, schemes of the KV cache) are not
used: activations are quantised by what is in them, if at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

from slipstream.workers.models.directory.json_keys import Keys, ModelError

CODES_PER_WORD = 8  # of 4 bits in an int32, as AWQ and GPTQ store them
INT4_GROUP = 128  # inputs that share a scale, of what is quantised on the way in
MIN_INT4_GROUP = 16
MXFP4_BLOCK = 32  # inputs that share a scale
CONFIG_KEYS = ("quantization_config", "compression_config")
OnLoad = Literal["none", "fp8", "int8", "int4"]  # what to make of a checkpoint that is not quantised
KvCacheDtype = Literal["auto", "fp8", "int8"]  # of keys and values; auto: the model's


@dataclass(frozen=True, slots=True)
class Fp8Stored:
    """`block` of outputs and inputs has a scale; None: a channel or the whole tensor."""

    block: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class AwqStored:
    group_size: int | None  # None: all inputs are one group


@dataclass(frozen=True, slots=True)
class GptqStored:
    group_size: int | None
    zeros_minus_one: bool


Stored = Fp8Stored | AwqStored | GptqStored


def stored_quantization(config: Keys) -> Stored | None:
    """What config.json says; None: nothing is quantised. Raises ModelError, and NotNativeError for what is not
    supported."""
    keys = next((section for key in CONFIG_KEYS if (section := config.section(key)) is not None), None)
    if keys is None:
        return None
    match keys.get("quant_method"):
        case "fp8":
            return _fp8(keys)
        case "compressed-tensors":
            return _compressed(keys)
        case "awq":
            return _awq(keys)
        case "gptq":
            return _gptq(keys)
        case "mxfp4" if config.get("model_type") == "gpt_oss":
            return None  # of experts only, which are widened while they are loaded (`StoredNames.experts`)
        case other:
            raise keys.not_native(
                "quant_method",
                f"{other!r} is not supported, only fp8, compressed-tensors, awq, gptq and, for gpt-oss, mxfp4",
            )


def int4_group(num_inputs: int) -> int:
    """The size of the groups of a layer that is quantised to 4 bits on the way in: 128 inputs, or the largest power of
    two below that divides them. Raises ModelError."""
    group_size = gcd(num_inputs, INT4_GROUP)
    if group_size < MIN_INT4_GROUP:
        raise ModelError(f"quantization int4: {num_inputs} inputs have no groups of at least {MIN_INT4_GROUP}")
    return group_size


def _fp8(keys: Keys) -> Fp8Stored:
    if (fmt := keys.get("fmt", "e4m3")) != "e4m3":
        raise keys.not_native("fmt", f"{fmt!r} is not supported, only e4m3")
    return Fp8Stored(_block(keys, "weight_block_size"))


def _compressed(keys: Keys) -> Fp8Stored:
    if (form := keys.get("format")) not in ("float-quantized", "naive-quantized"):
        raise keys.not_native("format", f"{form!r} is not supported, only float-quantized")
    if (sparsity := keys.section("sparsity_config")) is not None and sparsity.get("format", "dense") != "dense":
        raise sparsity.not_native("format", f"{sparsity.get('format')!r} is not supported, only dense")
    groups = keys.section("config_groups")
    if groups is None or len(groups.values) != 1:
        raise keys.not_native("config_groups", "must hold one group of layers that are all quantised alike")
    group = groups.section(next(iter(groups.values)))
    weights = None if group is None else group.section("weights")
    if weights is None:
        raise groups.error(next(iter(groups.values)), "does not say how weights are quantised")
    kind = (weights.get("type"), weights.get("num_bits"))
    if kind != ("float", 8):
        raise weights.not_native("type", f"{kind[1]} bits of {kind[0]} are not supported, only 8 bits of float")
    if not weights.flag("symmetric", True) or weights.get("dynamic", False) is not False:
        raise weights.not_native("symmetric", "only symmetric, static scales of weights are supported")
    match weights.get("strategy"):
        case "tensor" | "channel":
            return Fp8Stored(None)
        case "block":
            block = _block(weights, "block_structure")
            if block is None:
                raise weights.error("block_structure", "is missing")
            return Fp8Stored(block)
        case other:
            raise weights.not_native("strategy", f"{other!r} is not supported, only tensor, channel and block")


def _awq(keys: Keys) -> AwqStored:
    _four_bits(keys)
    if (version := str(keys.get("version", "gemm")).lower()) != "gemm":
        raise keys.not_native("version", f"{version!r} is not supported, only gemm")
    if not keys.flag("zero_point", True):
        raise keys.not_native("zero_point", "only weights with zero points are supported")
    return AwqStored(_group_size(keys))


def _gptq(keys: Keys) -> GptqStored:
    _four_bits(keys)
    if keys.flag("lm_head", False):
        raise keys.not_native("lm_head", "a quantised output layer is not supported")
    if keys.get("dynamic"):
        raise keys.not_native("dynamic", "layers that are quantised differently are not supported")
    form = keys.get("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise keys.not_native("checkpoint_format", f"{form!r} is not supported, only gptq and gptq_v2")
    return GptqStored(_group_size(keys), zeros_minus_one=form == "gptq")


def _four_bits(keys: Keys) -> None:
    if (bits := keys.get("bits", keys.get("w_bit"))) != 4:
        raise keys.not_native("bits", f"{bits!r} is not supported, only 4")


def _group_size(keys: Keys) -> int | None:
    key = "group_size" if keys.get("group_size") is not None else "q_group_size"
    return None if keys.get(key, -1) == -1 else keys.integer(key)


def _block(keys: Keys, key: str) -> tuple[int, int] | None:
    match keys.get(key):
        case None:
            return None
        case [int(outputs), int(inputs)] if outputs > 0 and inputs > 0:
            return outputs, inputs
        case other:
            raise keys.error(key, f"must be two positive integers, got {other!r}")
