"""What a newcomer, or an attacker, may write into config.json: each mistake is named by file, key and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.workers.models.description.config_check import check_config
from slipstream.workers.models.description.own_code import check_own_code
from slipstream.workers.models.directory.json_keys import Keys, ModelError
from tests.support.workers.tiny_models import build_tiny_model

OWN = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}


def problem_of(model_dir: Path, config: dict[str, Any]) -> str:
    (model_dir / "config.json").write_text(json.dumps(config))
    try:
        check_config(model_dir)
    except ModelError as error:
        return str(error).removeprefix(f"{model_dir}/config.json: ")
    return ""


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"head_dim": 0}, "head_dim: must be a positive integer, got 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: must be a positive integer, got 0"),
        ({"hidden_size": 64.0}, "hidden_size: must be a positive integer, got 64.0"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers: must be a positive integer, got '3'"),
        ({"sliding_window": -7}, "sliding_window: must be a positive integer, got -7"),
        ({"sliding_window": 0}, "sliding_window: must be a positive integer, got 0"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings: must be at most 2147483647, got 1000000000000"),
        ({"num_local_experts": -1}, "num_local_experts: must be an integer from 0 on, got -1"),
        (
            {"num_experts": 8, "num_experts_per_tok": 99},
            "num_experts_per_tok: must be from 1 to num_experts = 8, got 99",
        ),
        ({"dtype": 5}, "dtype: 5 is not supported, only float32, bfloat16, float16"),
        ({"torch_dtype": "float7"}, "torch_dtype: 'float7' is not supported, only float32, bfloat16, float16"),
        ({"quantization_config": "fp8"}, "quantization_config: must be an object, got 'fp8'"),
        ({"text_config": {"head_dim": 0}}, "text_config.head_dim: must be a positive integer, got 0"),
    ],
)
def test_a_number_that_no_model_can_have_is_named(config: dict[str, Any], problem: str, tmp_path: Path) -> None:
    assert problem_of(tmp_path, config) == problem


@pytest.mark.parametrize(
    "config",
    [
        {"head_dim": None, "sliding_window": None},
        {"num_key_value_heads": [1, 2, 2], "intermediate_size": [64, 128]},  # one for each layer
        {"num_local_experts": 0, "num_experts_per_tok": 0},  # a dense model of a family that can have experts
        {"sliding_window": 0, "use_sliding_window": False},
        {"num_hidden_layers": 126},
    ],
)
def test_what_some_models_have_is_left_to_transformers(config: dict[str, Any], tmp_path: Path) -> None:
    assert problem_of(tmp_path, config) == ""


def test_more_layers_than_the_checkpoint_has_tensors_are_not_built(tmp_path: Path) -> None:
    build_tiny_model("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    found = problem_of(tmp_path, config | {"num_hidden_layers": 1_000_000})
    assert found.startswith("num_hidden_layers: must be at most ")
    assert found.endswith(", as the checkpoint has no tensors for more, got 1000000")


@pytest.mark.parametrize(
    ("auto_map", "problem"),
    [
        (
            OWN | {"AutoConfig": "evil/repo--configuration_own.OwnConfig"},
            "auto_map.AutoConfig: 'evil/repo--configuration_own.OwnConfig' is code of another repository, 'evil/repo'; "
            "only code in the directory is run",
        ),
        (
            OWN | {"AutoModelForCausalLM": "../../evil.OwnForCausalLM"},
            "auto_map.AutoModelForCausalLM: must name a module of the directory and a class, as in 'module.Class', got "
            "'../../evil.OwnForCausalLM'",
        ),
        (OWN | {"AutoConfig": "other.OwnConfig"}, "auto_map.AutoConfig: 'other.OwnConfig': there is no {}/other.py"),
        (OWN | {"AutoConfig": 5}, "auto_map.AutoConfig: must name a module of the directory and a class"),
        ("nonsense", "auto_map: must name a module of the directory and a class"),
    ],
)
def test_only_code_in_the_directory_is_run(auto_map: object, problem: str, tmp_path: Path) -> None:
    for name in ("configuration_own.py", "modeling_own.py"):
        (tmp_path / name).touch()
    check_own_code(Keys(tmp_path / "config.json", {"auto_map": OWN}))
    with pytest.raises(ModelError) as caught:
        check_own_code(Keys(tmp_path / "config.json", {"auto_map": auto_map}))
    assert str(caught.value).startswith(f"{tmp_path}/config.json: {problem.format(tmp_path)}")
