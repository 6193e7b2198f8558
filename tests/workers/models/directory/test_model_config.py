"""Reading config.json: what families mean by it, old and new spellings, and errors that name file and key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.rope_config import LinearScaling, Llama3Scaling, Rope

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
# As on the Hub.
GEMMA3_1B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_hidden_layers": 26,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
LLAMA3 = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}


def read(model_dir: Path, **changes: Any) -> ModelConfig:
    """`changes` to PLAIN; a key with the value ... is left out."""
    keys = {key: value for key, value in {**PLAIN, **changes}.items() if value is not ...}
    (model_dir / "config.json").write_text(json.dumps(keys))
    return ModelConfig.read(model_dir)


def test_absent_keys_mean_what_the_family_means(tmp_path: Path) -> None:
    config = read(tmp_path, num_key_value_heads=...)
    assert config.num_kv_heads == 8
    assert config.head_dim == 8
    assert config.rms_norm_eps == 1e-6
    assert config.rope.theta == 10000
    assert config.rope.scaling is None
    assert config.max_position_embeddings == 2048
    assert config.layer_windows == (None, None)
    assert config.dtype == "float32"
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (False, False, False)
    assert (config.qk_norm, config.tie_word_embeddings) == (False, False)


def test_every_directory_that_transformers_saves_is_read(tiny_model_dir: Callable[[str], Path]) -> None:
    qwen2, qwen3 = ModelConfig.read(tiny_model_dir("qwen2")), ModelConfig.read(tiny_model_dir("qwen3"))
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm, qwen3.head_dim) == (False, False, True, 32)
    assert ModelConfig.read(tiny_model_dir("llama_tied")).tie_word_embeddings
    biased = ModelConfig.read(tiny_model_dir("llama_biased"))
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)
    assert ModelConfig.read(tiny_model_dir("mistral")).layer_windows == (24, 24, 24)
    assert ModelConfig.read(tiny_model_dir("qwen2_windowed")).layer_windows == (None, 24, 24)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 5e5},
        {"rope_scaling": {"type": "llama3", **LLAMA3}, "rope_theta": 500000},
    ],
    ids=["rope_parameters", "rope_type", "type"],
)
def test_old_and_new_spellings_of_rope_mean_the_same(keys: dict[str, Any], tmp_path: Path) -> None:
    config = read(tmp_path, **keys)
    assert config.rope.theta == 5e5
    assert config.rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(("stated", "window"), [(..., 4096), (None, None), (100, 100)])
def test_mistral_without_a_window_key_has_its_default_window_and_with_null_none(
    stated: Any, window: int | None, tmp_path: Path
) -> None:
    config = read(tmp_path, architectures=["MistralForCausalLM"], sliding_window=stated)
    assert config.layer_windows == (window, window)


def test_qwen_window_counts_only_where_it_is_used(tmp_path: Path) -> None:
    keys = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9}
    assert read(tmp_path, **keys, use_sliding_window=False).layer_windows == (None, None)
    assert read(tmp_path, **keys, use_sliding_window=True, max_window_layers=1).layer_windows == (None, 9)
    types = ["sliding_attention", "full_attention"]
    assert read(tmp_path, **keys, use_sliding_window=True, layer_types=types).layer_windows == (9, None)
    nulls = keys | {"sliding_window": None}
    assert read(tmp_path, **nulls, use_sliding_window=True, max_window_layers=0).layer_windows == (None, None)


@pytest.mark.parametrize(("stated", "expected"), [(..., 8), (None, 16), (2, 2)])
def test_mistral_without_a_number_of_kv_heads_has_its_default_and_with_null_one_a_head(
    stated: int | None, expected: int, tmp_path: Path
) -> None:
    keys = {"architectures": ["MistralForCausalLM"], "num_attention_heads": 16}
    assert read(tmp_path, **keys, num_key_value_heads=stated).num_kv_heads == expected


def test_gemma_3_has_windows_with_frequencies_of_their_own(tmp_path: Path) -> None:
    config = read(tmp_path, **GEMMA3_1B)
    assert config.layer_windows == ((512,) * 5 + (None,)) * 4 + (512, 512)
    assert (config.rope.theta, config.rope.scaling, config.window_rope) == (1e6, None, Rope(1e4))
    assert (config.gate, config.query_scalar, config.qk_norm, config.post_norms) == ("gelu_tanh", 256, True, True)
    assert config.tie_word_embeddings
    assert (config.attention_softcap, config.final_softcap) == (None, None)
    stretched = read(tmp_path, **GEMMA3_1B | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}})
    assert (stretched.rope.scaling, stretched.window_rope) == (LinearScaling(8.0), Rope(1e4))
    absent = read(tmp_path, architectures=["Gemma3ForCausalLM"])
    assert (absent.rope.theta, absent.window_rope, absent.layer_windows) == (1e6, Rope(1e4), (4096, 4096))


def test_gemma_2_caps_scores_unless_null_says_otherwise(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["Gemma2ForCausalLM"])
    assert (config.attention_softcap, config.final_softcap, config.query_scalar) == (50.0, 30.0, 256.0)
    assert (config.layer_windows, config.window_rope, config.head_dim) == ((4096, None), None, 256)
    nulls = read(
        tmp_path, architectures=["Gemma2ForCausalLM"], attn_logit_softcapping=None, final_logit_softcapping=None
    )
    assert (nulls.attention_softcap, nulls.final_softcap) == (None, None)


def test_gemma_1_may_name_its_gate_by_an_old_name(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["GemmaForCausalLM"], hidden_act="gelu")
    assert (config.gate, config.query_scalar, config.post_norms) == ("gelu_tanh", None, False)
    assert (config.layer_windows, config.head_dim, config.tie_word_embeddings) == ((None, None), 256, True)


@pytest.mark.parametrize("changes", [{"hidden_act": "swish"}, {"logits_scaling": 1.0}, {"num_experts": 0}])
def test_keys_that_ask_for_nothing_else_are_no_reason_to_refuse(changes: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path, **changes) == read(tmp_path)


def test_model_type_stands_in_for_architectures(tmp_path: Path) -> None:
    assert read(tmp_path, architectures=..., model_type="qwen3").family == "qwen3"


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_has_two_names(key: str, tmp_path: Path) -> None:
    assert read(tmp_path, **{key: "bfloat16"}).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"architectures: 'GPT2LMHeadModel' is not supported"),
        ({"architectures": ..., "model_type": "bloom"}, r"model_type: 'bloom' is not supported"),
        ({**GEMMA3_1B, "use_bidirectional_attention": True}, r"use_bidirectional_attention: True is not supported"),
        ({**GEMMA3_1B, "attn_logit_softcapping": 50.0}, r"attn_logit_softcapping: 50.0 is not supported"),
        ({**GEMMA3_1B, "sliding_window": None}, r"sliding_window: null is not supported for gemma3"),
        ({**GEMMA3_1B, "hidden_activation": "gelu"}, r"hidden_activation: only 'gelu_pytorch_tanh' is supported"),
        ({**GEMMA3_1B, "rope_parameters": {"rope_theta": 1}}, r"rope_parameters\.rope_theta: only parameters of full"),
        ({**GEMMA3_1B, "query_pre_attn_scalar": 0}, r"query_pre_attn_scalar: must be a positive number"),
        ({"query_pre_attn_scalar": 256}, r"query_pre_attn_scalar: 256 is not supported"),
        ({"architectures": "LlamaForCausalLM"}, r"architectures: must be a list of names"),
        ({"architectures": [{}]}, r"architectures: must be a list of names"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config\.quant_method: None is not supported"),
        ({"hidden_act": "gelu"}, r"hidden_act: only 'silu' is supported, got 'gelu'"),
        ({"hidden_size": ...}, r"hidden_size: is missing"),
        ({"hidden_size": "64"}, r"hidden_size: must be a positive integer, got '64'"),
        ({"hidden_size": True}, r"hidden_size: must be a positive integer, got True"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers: must be a positive integer, got 0"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads: 3 does not divide num_attention_heads = 8"),
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers: must be at most 10000, got 1000000000"),
        ({"vocab_size": 2**31}, r"vocab_size: must be at most 2147483647, got 2147483648"),
        ({"hidden_size": 10**400}, r"hidden_size: must be at most 2147483647, got 10{19}\.\.\. \(401 digits\)$"),
        ({"rope_theta": 10**400}, r"rope_theta: must be a positive number, got 10{19}\.\.\. \(401 digits\)$"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e308}}, r"rope_scaling: factor 1e\+308 makes more than"),
        ({"hidden_act": "x" * 10_000}, r"hidden_act: only 'silu' is supported, got 'x{1,400} \.\.\. x{1,50}'$"),
        ({"head_dim": 7}, r"head_dim: .* even"),
        ({"rms_norm_eps": -1}, r"rms_norm_eps: must be a positive number, got -1"),
        ({"rope_theta": float("nan")}, r"rope_theta: must be a positive number"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, r"rope_scaling.rope_type: 'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, r"rope_parameters.rope_type: 'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3"}}, r"rope_parameters.factor: is missing"),
        ({"rope_scaling": "linear"}, r"rope_scaling: must be an object"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor: only 1"),
        ({"tie_word_embeddings": "yes"}, r"tie_word_embeddings: must be true or false"),
        ({"torch_dtype": "float8_e4m3fn"}, r"torch_dtype: 'float8_e4m3fn' is not supported"),
        (
            {"architectures": ["MistralForCausalLM"], "model_type": "llama"},
            r"model_type: 'llama' contradicts architect",
        ),
        ({"final_logit_softcapping": 30.0}, r"final_logit_softcapping: 30\.0 is not supported"),
        ({"attention_multiplier": 0.1}, r"attention_multiplier: 0\.1 is not supported"),
        ({"residual_multiplier": 0.2}, r"residual_multiplier: 0\.2 is not supported"),
        ({"transformers_weights": "x.safetensors"}, r"transformers_weights: 'x\.safetensors' is not supported"),
        ({"layer_types": 5}, r"layer_types: must be a list of names, got 5"),
        ({"layer_types": ["sliding_attention"] * 2}, r"layer_types: only full_attention is supported for llama"),
        ({"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"] * 2}, r"layer_types: is not supp"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4}}},
            r"rope_parameters\.full_attent",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1]}},
            r"rope_parameters\.mrope_section: \[1",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention", "sliding_attention"]},
            r"layer_types: sliding_attention needs use_sliding_window",
        ),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, r"sliding_window: must be a positive"),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "use_sliding_window": True,
                "layer_types": ["linear_attention"] * 2,
            },
            r"layer_types: 'linear_attention' is not supported",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"config\.json: {named}"):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b"[" * 100_000, "is not valid JSON"),
    ],
)
def test_a_missing_or_broken_file_is_named(content: bytes | None, problem: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=rf"config\.json {problem}"):
        ModelConfig.read(tmp_path)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"config\.json is no regular file"):
        ModelConfig.read(tmp_path)


def test_an_integer_of_thousands_of_digits_is_refused_by_its_key(tmp_path: Path) -> None:
    text = json.dumps({**PLAIN, "unread": 0}).replace('"vocab_size": 100', f'"vocab_size": {"1" * 5000}')
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"vocab_size: must be a positive integer, got '1{20}\.\.\. \(5000 digits\)'"):
        ModelConfig.read(tmp_path)
    text = json.dumps({**PLAIN, "unread": 0}).replace('"unread": 0', f'"unread": {"1" * 5000}')
    (tmp_path / "config.json").write_text(text)
    assert ModelConfig.read(tmp_path).vocab_size == 100
