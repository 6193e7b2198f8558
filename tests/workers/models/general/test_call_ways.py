"""How a model with a cache may be called is found out in 16 bits, too, where rounding hides more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.cached.cache_layout import recorded_layout
from slipstream.workers.models.general.cached.cached_model import CachedModel
from slipstream.workers.models.general.call_ways import find_way
from slipstream.workers.models.general.self_check import SelfCheckError
from tests.support.workers.general_models import JAMBA

PAGE_TOKENS = 8
SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KINDS: dict[str, dict[str, Any]] = {
    "jamba": JAMBA,
    "falcon_mamba": {"state_size": 4},
    "rwkv": {},
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "minimax": {
        "layer_types": ["linear_attention", "full_attention"],
        "block_size": 16,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "deepseek_v4": {
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
        "mlp_layer_types": ["moe", "moe"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "o_groups": 2,
        "o_lora_rank": 8,
        "hc_mult": 2,
        "index_head_dim": 8,
        "index_n_heads": 16,
        "sliding_window": 8,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"],
        "mamba_expand": 1,
        "mamba_d_state": 8,
        "mamba_headdim": 8,
        "n_mamba_heads": 4,
        "use_mem_rope": True,
        "time_step_min": 0.5,
        "time_step_max": 0.9,
        "chunk_size": 16,
    },
}


def _cached(kind: str, dtype: torch.dtype, **more: Any) -> CachedModel:
    torch.manual_seed(3)
    config = CONFIG_MAPPING[kind](**{**SIZES, **KINDS[kind], **more})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2 if "embed" in name else 0.5)
    model.to(dtype)  # type: ignore[arg-type]
    layout = recorded_layout(model)
    spec = GeneralSpec(kind, SIZES["vocab_size"], 256, "float32", layout.kv_spec, mode="cached")
    return CachedModel(spec, model, layout, PAGE_TOKENS)


@pytest.mark.parametrize(
    ("kind", "can_batch", "can_continue"),
    [
        ("jamba", True, False),
        ("falcon_mamba", True, False),
        ("rwkv", False, True),
        ("lfm2", True, True),
        ("minimax", True, True),
        ("deepseek_v4", False, True),
    ],
)
def test_a_way_in_which_scores_differ_is_not_taken_in_16_bits(kind: str, can_batch: bool, can_continue: bool) -> None:
    cached = _cached(kind, torch.bfloat16)
    find_way(cached, PAGE_TOKENS)
    assert (cached.can_batch, cached.can_continue) == (can_batch, can_continue)


def test_sequences_are_longer_than_the_longest_run_of_which_a_model_makes_an_entry() -> None:
    """Padding in front shifts the runs. Here the shortest run is longer than most sequences."""
    rates = {"compressed_sparse_attention": 128, "heavily_compressed_attention": 128}
    cached = _cached("deepseek_v4", torch.float32, compress_rates=rates)
    find_way(cached, PAGE_TOKENS)
    assert not cached.can_batch


def test_a_model_that_contradicts_itself_is_refused_in_16_bits_too() -> None:
    """Zamba2 bounds its time steps where several tokens come at a time, but not where one does."""
    with pytest.raises(SelfCheckError, match=r"zamba2 cannot be served over pages: after a state, .* neither are"):
        find_way(_cached("zamba2", torch.bfloat16), PAGE_TOKENS)
