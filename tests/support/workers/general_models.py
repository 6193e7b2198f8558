"""Tiny random models that no native family computes, as `transformers` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 203,  # odd, so that two ranks cannot share it evenly
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
JAMBA: dict[str, Any] = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "mamba_d_state": 4,
    "mamba_dt_rank": 4,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "phi": {},
    "phi3": {},
    "gemma2": {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16},  # soft-cap, windows
    "gpt_oss": {"head_dim": 16, "sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2},  # sinks
    "granite_swa": {"sliding_window": 24},  # sinks that the plan deals out
    "deepseek_v3": MLA,  # keys wider than values
    "llama4_text": {"head_dim": 16, "attention_chunk_size": 32, "num_local_experts": 4, "intermediate_size_mlp": 96},
    "qwen3_moe": {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "qwen3_next": {  # states of linear attention beside pages
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},  # has no plan for tensor parallelism
}


def build_general_model(kind: str, model_dir: Path, **overrides: Any) -> Path:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**SIZES, **KINDS.get(kind, {}), **overrides})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:  # wide enough that the best token of a random model stands out from the second
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(model_dir)
    return model_dir
