"""Random-weight Llama models to measure with: S (9M parameters, where overhead is everything) and M (125M)."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def make_model(name: str, directory: Path) -> Path:
    """Saves model `name` (`S-bf16`, `M-f32` ...) under `directory`, if it is not there, and returns where it is. The
    bf16 weights are the f32 ones, rounded."""
    model_dir = directory / name
    if (model_dir / "model.safetensors").exists():
        return model_dir
    size, dtype = name.split("-")
    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPES[size],
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        initializer_range=0.05,
    )
    _tokenizer(config.vocab_size).save_pretrained(model_dir)
    LlamaForCausalLM(config).to(DTYPES[dtype]).save_pretrained(model_dir)
    return model_dir


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
