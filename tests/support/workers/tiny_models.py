"""Tiny random models of each family, in Hugging Face layout, with a byte-level tokenizer beside the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SPECIAL_TOKENS = ("<s>", "</s>", "<pad>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)  # odd, so that two ranks cannot share it evenly
BOS_ID, EOS_ID, PAD_ID = range(256, VOCAB_SIZE)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}

# Weights wide enough that the best token of a random model stands out from the second.
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
}

QWEN3_MOE: dict[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
}

GPT_OSS: dict[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 24,
    "rope_parameters": {**YARN_ROPE, "truncate": False},
}

FAMILIES: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 2, "rope_parameters": LLAMA3_ROPE}),
    "llama_tied": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama_biased": (
        LlamaConfig,
        LlamaForCausalLM,
        {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"num_key_value_heads": 2, "sliding_window": 24}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"num_key_value_heads": 2, "rope_parameters": YARN_ROPE}),
    "qwen2_windowed": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"num_key_value_heads": 2, "head_dim": 32}),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, QWEN3_MOE),
    "qwen3_moe_mixed": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {**QWEN3_MOE, "norm_topk_prob": False, "decoder_sparse_step": 2, "num_experts_per_tok": 3},
    ),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM, GPT_OSS),
    "gemma": (GemmaConfig, GemmaForCausalLM, {"num_key_value_heads": 2, "head_dim": 24}),
    "gemma2": (
        Gemma2Config,
        Gemma2ForCausalLM,
        {
            "num_key_value_heads": 2,
            "head_dim": 48,
            "sliding_window": 24,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "num_key_value_heads": 2,
            "head_dim": 32,
            "sliding_window": 24,
            "query_pre_attn_scalar": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
}


def build_tiny_model(family: str, model_dir: Path, *, max_shard_size: str = "1GB", **overrides: Any) -> Path:
    """Saves a random model of `family` (a key of FAMILIES) with its tokenizer into `model_dir` and returns that.

    The weights depend on the family and `overrides` (keys of the configuration) alone.
    """
    config_class, model_class, differences = FAMILIES[family]
    torch.manual_seed(list(FAMILIES).index(family))
    model = model_class(config_class(**{**COMMON, **differences, **overrides})).eval()
    _fill_what_starts_uniform(model)
    model.save_pretrained(model_dir, max_shard_size=max_shard_size)
    byte_tokenizer().save_pretrained(model_dir)
    return model_dir


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte: any text is a prompt and any token is text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def _fill_what_starts_uniform(model: PreTrainedModel) -> None:
    """Norm weights start at one and biases at zero, where a lost weight or bias would not show."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith(("bias", "sinks")):
                parameter.normal_(std=0.5)
