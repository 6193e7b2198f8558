"""What a check finds about a model that transformers computes, with the key and the value, and without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from slipstream.cluster.config.budget_config import BudgetConfig
from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.cluster.repository.memory_need import memory_parts
from slipstream.cluster.repository.model_dir import check_model_dir, model_notes, model_problems, model_warnings
from slipstream.cluster.sizing.model_size import ModelFacts
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.models.description import describing, weights_check
from slipstream.workers.models.general.examination import examine
from tests.support.workers.custom_code import build_custom_code_model, processes_that_ran
from tests.support.workers.general_models import build_general_model
from tests.support.workers.tiny_models import byte_tokenizer

FREE_OF_TORCH = """
import sys
from slipstream.cluster.commands.checking.check_command import check_command
try:
    check_command([sys.argv[1], "--elsewhere"], standalone_mode=True)
except SystemExit as end:
    heavy = {"torch", "transformers"} & set(sys.modules)
    sys.exit(f"imported {heavy}" if heavy else end.code)
"""


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would run in a process of its own runs here, where torch has been imported."""

    def run_here(module: str, arguments: Iterable[str], model_dir: Path) -> bytes:
        what, directory, runs_code = arguments
        assert (module, runs_code) == (examine.__name__, "0")
        return {"describe": examine.describe, "weights": examine.weights}[what](Path(directory), runs_code=False)

    monkeypatch.setattr(describing, "run_in_subprocess", run_here)
    monkeypatch.setattr(weights_check, "run_in_subprocess", run_here)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoint has each expert by itself, as those that people publish."""
    model_dir = tmp_path_factory.mktemp("mixtral")
    build_general_model("mixtral", model_dir, vocab_size=259, num_local_experts=4)
    byte_tokenizer().save_pretrained(model_dir)
    return model_dir


@pytest.fixture
def copy(mixtral: Path, tmp_path: Path) -> Path:
    return shutil.copytree(mixtral, tmp_path / "copy")


def config_of(model_dir: Path, **engine: object) -> ClusterConfig:
    pool = PoolConfig(engine=replace(EngineConfig(kv_cache_mib=4), **engine))  # type: ignore[arg-type]
    return ClusterConfig(model=ServedModelConfig(str(model_dir), "m"), prefill=pool, decode=pool)


def rewrite(model_dir: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = safetensors.torch.load_file(model_dir / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, model_dir / "model.safetensors", {"format": "pt"})


def test_a_whole_model_has_no_problems_and_a_size(mixtral: Path) -> None:
    assert list(model_problems(mixtral, config_of(mixtral))) == []
    assert list(model_warnings(config_of(mixtral))) == []
    facts = ModelFacts.read(mixtral)
    weights = sum(one.numel() for one in safetensors.torch.load_file(mixtral / "model.safetensors").values())
    assert facts.weight_bytes == 4 * weights
    assert facts.kv_token_bytes == 3 * 2 * 2 * 16 * 4  # layers, keys and values, heads, their size, float32
    assert not facts.is_native
    assert next(memory_parts(config_of(mixtral, num_pages=7))).said == "the weights in model.path"


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (
            "model.layers.1.block_sparse_moe.experts.2.w1.weight",
            lambda tensors, name: tensors.pop(name),
            "the weights for model.layers.1.mlp.experts.gate_up_proj cannot be made of those that are there: ",
        ),
        (
            "model.layers.1.self_attn.q_proj.weight",
            lambda tensors, name: tensors.pop(name),
            "no weights for model.layers.1.self_attn.q_proj.weight",
        ),
        (
            "model.norm.weight",
            lambda tensors, name: tensors.update({name: torch.zeros(3)}),
            "other shapes than config.json asks for: model.norm.weight ([3], not [64])",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(
    copy: Path, name: str, change: Callable[[dict[str, torch.Tensor], str], object], expected: str
) -> None:
    rewrite(copy, lambda tensors: change(tensors, name))
    assert expected in (check_model_dir(copy) or "")


def test_files_that_are_cut_off_or_missing_are_named(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "model.safetensors is truncated" in (check_model_dir(copy) or "")
    weights.unlink()
    assert "has neither model.safetensors nor" in (check_model_dir(copy) or "")


def test_a_model_without_a_tokenizer_is_refused(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    assert check_model_dir(copy) == f"no tokenizer.json in {copy}"
    code = {"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (copy / "tokenizer_config.json").write_text(json.dumps(code))
    assert "auto_map.AutoTokenizer: a tokenizer that is code, " in (check_model_dir(copy) or "")


@pytest.mark.parametrize(
    ("engine", "key", "expected"),
    [
        ({"quantization": "int8"}, "quantization", "must be none, because transformers computes MixtralForCausalLM"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype", "must be auto, because transformers computes Mixtral"),
        ({"max_model_len": 1000}, "max_model_len", "must be at most the model's 512 positions, got 1000"),
        ({"model_impl": "native"}, "model.path", "model_impl native: "),
    ],
)
def test_settings_that_the_model_does_not_have_are_named(
    mixtral: Path, engine: dict[str, object], key: str, expected: str
) -> None:
    where, sentence = next(model_problems(mixtral, config_of(mixtral, **engine)))
    assert ".".join(where).endswith(key)
    assert expected in sentence


def test_a_degree_that_the_plan_cannot_divide_is_refused(mixtral: Path) -> None:
    config = config_of(mixtral)
    config = replace(config, prefill=replace(config.prefill, tp=3))
    (((role, key), sentence),) = model_problems(mixtral, config)
    assert (role, key) == ("prefill", "tp")
    assert "got 3" in sentence


def test_pools_of_unlike_code_are_refused(mixtral: Path) -> None:
    config = config_of(mixtral)
    config = replace(config, prefill=replace(config.prefill, engine=EngineConfig(model_impl="transformers")))
    (((*_, key), sentence),) = model_problems(mixtral, config)
    assert key == "model_impl"
    assert "must be that of decode, auto, got transformers" in sentence


def test_code_in_the_directory_is_refused_or_left_to_the_workers(tmp_path: Path) -> None:
    model_dir = build_custom_code_model(tmp_path / "twisted")
    config = config_of(model_dir)
    ((key, sentence),) = model_problems(model_dir, config)
    assert key == ("model", "path")
    assert "trust_remote_code: true" in sentence
    trusting = replace(config, model=replace(config.model, trust_remote_code=True))
    assert list(model_problems(model_dir, trusting)) == []
    (warning,) = model_warnings(trusting)
    assert warning.startswith("model.trust_remote_code is true: only the workers run ")
    assert processes_that_ran(model_dir) == set()


def test_a_model_that_only_transformers_computes_is_warned_about(
    tmp_path: Path, tiny_model_dir: Callable[[str], Path]
) -> None:
    model_dir = shutil.copytree(tiny_model_dir("llama"), tmp_path / "gelu")
    config = json.loads((model_dir / "config.json").read_text()) | {"hidden_act": "gelu"}
    (model_dir / "config.json").write_text(json.dumps(config))
    (warning,) = model_warnings(config_of(model_dir))
    assert "hidden_act: only 'silu' is supported, got 'gelu': transformers computes the model in place of" in warning


def test_a_context_that_the_pages_cut_short_is_noted(mixtral: Path) -> None:
    assert list(model_notes(config_of(mixtral))) == []
    assert list(model_notes(config_of(mixtral, kv_cache_mib="auto"))) == []  # which depends on the machine
    (note,) = model_notes(config_of(mixtral, num_pages=3))
    assert note == "context of 48 tokens, of the model's 512: num_pages 3 holds no more"
    assert list(model_notes(config_of(mixtral, num_pages=3, max_model_len=40))) == []
    config = replace(config_of(mixtral, device="cpu"), budget=BudgetConfig(memory_gib=200 * 2**-20))
    (note,) = model_notes(config)
    assert note.startswith("context of 256 tokens, of the model's 512: budget.memory_gib ")


def test_experts_that_a_model_does_not_have_are_warned_about(tiny_model_dir: Callable[[str], Path]) -> None:
    warnings = list(model_warnings(config_of(tiny_model_dir("llama"), expert_parallel=True)))
    assert any("engine.expert_parallel: true changes nothing" in warning for warning in warnings)
    assert not list(model_warnings(config_of(tiny_model_dir("qwen3_moe"), expert_parallel=True)))


def test_the_command_checks_such_a_model_without_torch(mixtral: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREE_OF_TORCH, str(mixtral)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "ok: " in done.stdout
