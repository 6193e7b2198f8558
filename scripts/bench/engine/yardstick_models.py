"""Models of random weights to measure with: Llamas, S (9M parameters, where overhead is everything) and M (125M), and a
Gemma, a Phi and a mixture of experts of about the size of M."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerFast

SHAPES = {
    "S": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 768,
        "vocab_size": 8192,
    },
    "M": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 2048,
        "vocab_size": 32000,
    },
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {  # model type, and what differs from M
    "gemma": ("gemma2", {"query_pre_attn_scalar": 64, "num_hidden_layers": 10}),
    "phi": ("phi", {"num_key_value_heads": 12}),
    "moe": ("qwen3_moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}),
}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def make_model(name: str, directory: Path) -> Path:
    """Saves model `name` (`S-bf16`, `M-f32`, `gemma-bf16` ...) under `directory`, if it is not there, and returns where
    it is. The bf16 weights are the f32 ones, rounded."""
    model_dir = directory / name
    if (model_dir / "model.safetensors").exists():
        return model_dir
    kind, dtype = name.split("-")
    torch.manual_seed(0)
    config = _config(kind)
    _tokenizer(config.vocab_size).save_pretrained(model_dir)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(DTYPES[dtype]).save_pretrained(model_dir)
    return model_dir


def _config(kind: str) -> PretrainedConfig:
    shape: dict[str, Any] = SHAPES.get(kind, SHAPES["M"])
    model_type, differs = OTHERS.get(kind, ("llama", {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}))
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    return CONFIG_MAPPING[model_type](
        **{**shape, **ids, "max_position_embeddings": 4096, "initializer_range": 0.05, **differs}
    )


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Bytes and fillers: the engines want one, the benchmark does not use it."""
    special = ["<s>", "</s>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fillers = [f"filler{i}" for i in range(vocab_size - len(special) - len(alphabet))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate([*special, *alphabet, *fillers])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=4096
    )
