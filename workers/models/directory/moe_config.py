"""What config.json says of a mixture of experts. Free of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.workers.models.directory.json_keys import Keys

MAX_EXPERTS = 10_000  # far more than any layer has


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Layers with experts, all alike. The other layers have one feed-forward block for all rows."""

    num_experts: int
    top_k: int  # experts that a row chooses
    intermediate_size: int  # of each
    renormalise: bool  # the weights of a row's choices sum to one
    has_bias: bool  # router and experts
    swiglu: tuple[float, float] | None  # alpha and limit of gpt-oss's gate; None: silu
    in_layers: tuple[bool, ...]  # by layer
    is_mxfp4: bool = False  # in the checkpoint


def read_qwen3_moe(keys: Keys, num_layers: int) -> MoeConfig:
    """Qwen3-MoE: a layer has experts unless `mlp_only_layers` has its number, in each `decoder_sparse_step`-th layer.
    Defaults are those of transformers' Qwen3MoeConfig."""
    num_experts, top_k = _sizes(keys, "num_experts", 128, 8)
    step = keys.integer("decoder_sparse_step", 1)
    dense = keys.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise keys.error("mlp_only_layers", f"must be a list of layers' numbers, got {dense!r}")
    return MoeConfig(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=keys.integer("moe_intermediate_size", 768),
        renormalise=keys.flag("norm_topk_prob", False),
        has_bias=False,
        swiglu=None,
        in_layers=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)),
    )


def read_gpt_oss(keys: Keys, num_layers: int) -> MoeConfig:
    """gpt-oss: all layers have experts. Defaults are those of transformers' GptOssConfig."""
    num_experts, top_k = _sizes(keys, "num_local_experts", 128, 4)
    quantization = keys.section("quantization_config")
    return MoeConfig(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=keys.integer("intermediate_size", 2880),
        renormalise=True,
        has_bias=True,
        swiglu=(keys.number("swiglu_alpha", 1.702), keys.number("swiglu_limit", 7.0)),
        in_layers=(True,) * num_layers,
        is_mxfp4=quantization is not None and quantization.get("quant_method") == "mxfp4",
    )


MOE_READERS: dict[str, Callable[[Keys, int], MoeConfig]] = {"qwen3_moe": read_qwen3_moe, "gpt_oss": read_gpt_oss}


def _sizes(keys: Keys, key: str, num_experts: int, top_k: int) -> tuple[int, int]:
    """The number of experts, which config.json has under either of two names (transformers writes one and reads both),
    and that of a row's choices."""
    other = "num_experts" if key == "num_local_experts" else "num_local_experts"
    key = other if keys.get(key) is None and keys.get(other) is not None else key
    num_experts = keys.integer(key, num_experts)
    if num_experts > MAX_EXPERTS:
        raise keys.error(key, f"must be at most {MAX_EXPERTS}, got {num_experts}")
    top_k = keys.integer("num_experts_per_tok", top_k)
    if top_k > num_experts:
        raise keys.error("num_experts_per_tok", f"{top_k} is more than {key} = {num_experts}")
    return num_experts, top_k
