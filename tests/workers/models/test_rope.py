"""Rotary frequencies against those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.rope import rotary_frequencies

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn_all_keys": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "truncate": False,
    },
    "yarn_attention_factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "attention_factor": 0.7,
        "original_max_position_embeddings": 2048,
    },
}


def write_config(model_dir: Path, **rope: Any) -> ModelConfig:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 10,
        "hidden_size": 512,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 32768,
        **rope,
    }
    (model_dir / "config.json").write_text(json.dumps(config))
    return ModelConfig.read(model_dir)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("layout", ["rope_parameters", "rope_scaling"])
def test_scaled_frequencies_equal_those_of_transformers(name: str, layout: str, tmp_path: Path) -> None:
    scaling = SCALINGS[name]
    if layout == "rope_parameters":
        ours = write_config(tmp_path, rope_parameters={"rope_theta": 1e6, **scaling})
    else:
        old = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
        ours = write_config(tmp_path, rope_theta=1e6, rope_scaling=old)
    reference = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=32768,
        rope_parameters={"rope_theta": 1e6, **scaling},
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](reference)
    inv_freq, factor = rotary_frequencies(ours)
    torch.testing.assert_close(inv_freq, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


def test_unscaled_frequencies_fall_geometrically(tmp_path: Path) -> None:
    inv_freq, factor = rotary_frequencies(write_config(tmp_path, rope_theta=10000.0))
    torch.testing.assert_close(inv_freq, torch.logspace(0, -4, 65)[:64])
    assert factor == 1


def test_yarn_stretches_the_context(tmp_path: Path) -> None:
    assert write_config(tmp_path, rope_scaling=SCALINGS["yarn"]).max_position_embeddings == 131072
