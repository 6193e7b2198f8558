"""What config.json says of a mixture of experts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.sharding.rank_share import Rank, RankShare

QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "truncate": False},
}


def read(folder: Path, base: dict[str, object], **keys: object) -> ModelConfig:
    content = {name: value for name, value in (base | keys).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(content))
    return ModelConfig.read(folder)


@pytest.mark.parametrize(
    ("keys", "in_layers"),
    [
        ({}, (True, True, True, True)),
        ({"decoder_sparse_step": 2}, (False, True, False, True)),
        ({"mlp_only_layers": [0, 3]}, (False, True, True, False)),
    ],
)
def test_layers_with_experts(tmp_path: Path, keys: dict[str, object], in_layers: tuple[bool, ...]) -> None:
    config = read(tmp_path, QWEN3_MOE, **keys)
    assert config.moe is not None
    assert config.moe.in_layers == in_layers
    assert config.has_dense_layers == (not all(in_layers))
    assert ("intermediate_size" in dict(config.divided)) == (not all(in_layers))


def test_either_name_of_the_number_of_experts(tmp_path: Path) -> None:
    config = read(tmp_path, QWEN3_MOE, num_experts="absent", num_local_experts=5)
    assert config.moe is not None
    assert config.moe.num_experts == 5


def test_gpt_oss_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, GPT_OSS)
    assert config.moe is not None
    assert config.moe.swiglu == (1.702, 7.0)
    assert config.layer_windows == (128, None, 128, None)
    assert (config.head_dim, config.rope.theta, config.rms_norm_eps) == (64, 150000.0, 1e-5)
    assert (config.qkv_bias, config.output_bias, config.attention_sinks) == (True, True, True)


@pytest.mark.parametrize(
    ("base", "keys", "named"),
    [
        (QWEN3_MOE, {"num_experts_per_tok": 7}, "num_experts_per_tok: 7 is more than num_experts = 6"),
        (QWEN3_MOE, {"num_experts": 20_000}, "num_experts: must be at most 10000, got 20000"),
        (QWEN3_MOE, {"mlp_only_layers": ["a"]}, "mlp_only_layers: must be a list of layers' numbers"),
        (QWEN3_MOE, {"decoder_sparse_step": 0}, "decoder_sparse_step: must be a positive integer"),
        (GPT_OSS, {"rope_scaling": None}, "rope_scaling: is missing"),
        (GPT_OSS, {"swiglu_limit": -1}, "swiglu_limit: must be a positive number"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, base: dict[str, object], keys: dict[str, object], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        read(tmp_path, base, **keys)


def test_experts_are_dealt_out_by_parts_or_whole(tmp_path: Path) -> None:
    config = read(tmp_path, QWEN3_MOE)
    by_parts = RankShare.of(config, Rank(1, 2)).layers[0].experts
    whole = RankShare.of(config, Rank(1, 2), expert_parallel=True).layers[0].experts
    assert by_parts is not None
    assert whole is not None
    assert (by_parts.first, len(by_parts.down), by_parts.down[0].num_columns) == (0, 6, 20)
    assert (whole.first, len(whole.down), whole.down[0].num_columns) == (3, 3, 40)
    assert whole.down[0].weights[0].name == "model.layers.0.mlp.experts.3.down_proj.weight"


@pytest.mark.parametrize(
    ("size", "expert_parallel", "named"),
    [(4, True, "does not divide the number of experts = 6"), (3, False, "the intermediate size of an expert = 40")],
)
def test_degrees_that_do_not_divide_the_experts_are_refused(
    tmp_path: Path, size: int, expert_parallel: bool, named: str
) -> None:
    config = read(tmp_path, QWEN3_MOE, num_attention_heads=12, num_key_value_heads=12, head_dim=8)
    with pytest.raises(ModelError, match=named):
        RankShare.of(config, Rank(0, size), expert_parallel=expert_parallel)
