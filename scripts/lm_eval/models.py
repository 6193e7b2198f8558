"""Tiny models with random weights and the demo model's tokenizer, one for each way in which a worker computes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.support.clients.scripted_router import ROOT

DEMO = ROOT / "models/slipstream-demo"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
MAX_LENGTH = 256
SMALL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("native kernels", {"head_dim": 16}),
    "gemma2": ("native kernels, windows, a soft cap", {"head_dim": 16, "sliding_window": 48}),
    "phi3": ("a graph of transformers' class", {}),
    "mamba2": (
        "transformers' class with states",
        {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16},
    ),
}
DEMO_NAME = "slipstream-demo"


def build_models(folder: Path) -> dict[str, tuple[str, Path]]:
    """What computes each model, and its directory, by name."""
    models = {DEMO_NAME: ("native kernels; trained", DEMO)}
    for kind, (how, fields) in KINDS.items():
        torch.manual_seed(0)
        config = CONFIG_MAPPING[kind](**{**SMALL, **fields})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:  # wide enough that the best token of a random model stands out
                torch.nn.init.normal_(parameter, std=0.1)
        model.generation_config.eos_token_id = 2
        model.save_pretrained(folder / kind)
        for name in TOKENIZER_FILES:
            if (DEMO / name).exists():
                shutil.copy(DEMO / name, folder / kind / name)
        models[kind] = (how, folder / kind)
    return models
