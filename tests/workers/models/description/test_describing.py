"""Descriptions of general models: made once, here or in a process of their own, and never by code that is refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from transformers import BartConfig, BertConfig

from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.limits.engine_errors import EngineConfigError
from slipstream.workers.engine.limits.pool_size import longest_sequence
from slipstream.workers.models.description import module_process, result_cache
from slipstream.workers.models.description.describing import describe, examine_in_subprocess
from slipstream.workers.models.description.model_description import (
    CodeNeededError,
    CodeNotRunError,
    Found,
    ModelDescription,
)
from slipstream.workers.models.description.result_cache import ResultCache
from slipstream.workers.models.description.weights_check import check_general_weights
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.directory.model_config import ModelConfig
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.examination.examine import found_in
from slipstream.workers.models.spec_reader import read_spec, why_not_native
from tests.support.workers.custom_code import build_custom_code_model, processes_that_ran
from tests.support.workers.general_models import build_general_model


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_general_model("phi3", tmp_path_factory.mktemp("phi3"))


def described() -> Found:
    return Found(ModelDescription(GeneralSpec("Some", 8, 16, "float32", KvSpec.uniform(1, 8, (None,)))))


def never(model_dir: Path, runs_code: bool) -> Found:
    raise AssertionError(f"{model_dir} was examined once more ({runs_code})")


def altered(model_dir: Path, copy: Path, **keys: object) -> Path:
    """A copy with other keys in config.json; None removes one."""
    shutil.copytree(model_dir, copy)
    config = json.loads((copy / "config.json").read_text()) | keys
    (copy / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return copy


def test_a_process_of_its_own_finds_what_this_one_finds_and_it_is_kept(phi3: Path) -> None:
    found = describe(phi3, examine=examine_in_subprocess)
    assert found == found_in(phi3, False).description
    assert (found.spec.architecture, found.spec.vocab_size) == ("Phi3ForCausalLM", 203)
    assert found.tensors["lm_head.weight"] == (203, 64)
    assert describe(phi3, examine=never) == found
    check_general_weights(phi3, found)  # asks no other process, as names and shapes are the model's own


def test_another_config_is_another_model(phi3: Path, tmp_path: Path) -> None:
    describe(phi3, examine=lambda model_dir, runs_code: described())
    with pytest.raises(AssertionError, match="once more"):
        describe(altered(phi3, tmp_path / "other", rms_norm_eps=0.5), examine=never)


def test_a_refusal_names_the_directory_and_is_not_kept(phi3: Path) -> None:
    with pytest.raises(ModelError, match=f"^{phi3}/config.json: needs a package$"):
        describe(phi3, examine=lambda model_dir, runs_code: Found(refusal="{directory}/config.json: needs a package"))
    assert describe(phi3, examine=lambda model_dir, runs_code: described()) == described().description


def test_a_process_that_takes_too_long_is_ended(phi3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_process, "TIMEOUT_S", 0.1)
    with pytest.raises(ModelError, match=r"phi3\w*: transformers has not described the model within 0.1 s"):
        describe(phi3, examine=examine_in_subprocess)


def test_the_cache_forgets_what_was_used_longest_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_cache, "MOST_RESULTS", 3)
    cache, now = ResultCache(), time.time()
    for days, key in enumerate(("today", "yesterday", "before", "old")):
        cache.put(key, key.encode())
        os.utime(tmp_path / "cache" / "slipstream" / "descriptions" / f"{key}.json", (now, now - days * 24 * 3600))
    assert cache.get("yesterday") == b"yesterday", "which counts as used now"
    cache.put("new", b"new")
    assert [key for key in ("today", "yesterday", "before", "old", "new") if cache.get(key)] == [
        "today",
        "yesterday",
        "new",
    ]
    for path in (tmp_path / "cache" / "slipstream" / "descriptions").iterdir():
        os.utime(path, (0, 0))
    cache.put("newer", b"newer")
    assert cache.get("new") is None


def test_code_in_the_directory_runs_only_where_it_may(tmp_path: Path) -> None:
    model_dir = build_custom_code_model(tmp_path / "twisted")
    with pytest.raises(CodeNeededError, match=r"config\.json: auto_map: 'twisted' .* trust_remote_code: true"):
        read_spec(model_dir)
    with pytest.raises(CodeNotRunError, match="twisted"):
        read_spec(model_dir, code="elsewhere")
    assert processes_that_ran(model_dir) == set()
    spec = read_spec(model_dir, code="here")
    assert isinstance(spec, GeneralSpec)
    assert (spec.architecture, spec.runs_code) == ("TwistedForCausalLM", True)
    assert processes_that_ran(model_dir) == {os.getpid()}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"hidden_act": "gelu"}, "hidden_act: only 'silu' is supported"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
            "rope_parameters.rope_type: 'dynamic' is not supported",
        ),
    ],
)
def test_a_family_that_does_not_compute_a_config_leaves_it_to_transformers(
    keys: dict[str, object], why: str, tmp_path: Path, tiny_model_dir: Callable[[str], Path]
) -> None:
    model_dir = altered(tiny_model_dir("llama"), tmp_path / "altered", **keys)
    assert isinstance(read_spec(model_dir), GeneralSpec)
    assert why in (why_not_native(model_dir) or "")
    with pytest.raises(ModelError, match=r"is (not )?supported") as caught:
        read_spec(model_dir, "native")
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping: 30.0 is not supported: LlamaForCausalLM of"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not supported: LlamaForCausalLM of"),
        ({"architectures": ["Phi3ForCausalLM"]}, "model_type: 'llama' contradicts architectures: Phi3ForCausalLM"),
        ({"architectures": None, "model_type": "unheard"}, "model_type: 'unheard' is not supported: transformers"),
        ({"architectures": None, "model_type": None}, "model_type"),
        ({"architectures": None, "model_type": "vit"}, "'vit' is not supported: transformers .* no such causal"),
        ({"architectures": None, "model_type": "t5"}, "is_encoder_decoder: true: t5 is an encoder-decoder model"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: true: LlamaForCausalLM is an encoder-decoder model"),
    ],
)
def test_what_neither_computes_is_refused(
    keys: dict[str, object], expected: str, tmp_path: Path, tiny_model_dir: Callable[[str], Path]
) -> None:
    with pytest.raises(ModelError, match=rf"config.json: .*{expected}"):
        read_spec(altered(tiny_model_dir("llama"), tmp_path / "altered", **keys))


@pytest.mark.parametrize("name", ["BartForConditionalGeneration", "T5ForConditionalGeneration"])
def test_a_checkpoint_with_an_encoder_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    config = getattr(transformers, name).config_class(architectures=[name])
    config.save_pretrained(tmp_path)
    expected = f"config.json: is_encoder_decoder: true: {name} is an encoder-decoder model, which is not supported"
    for in_own_process in (False, True):
        with pytest.raises(ModelError, match=expected):
            read_spec(tmp_path, in_subprocess=in_own_process)


def test_the_decoder_of_such_a_checkpoint_is_a_model_of_its_own(tmp_path: Path) -> None:
    BartConfig(is_encoder_decoder=False, is_decoder=True, d_model=32, vocab_size=64).save_pretrained(tmp_path)
    spec = read_spec(tmp_path)
    assert isinstance(spec, GeneralSpec)
    assert spec.architecture == "BartForCausalLM"


def test_a_model_whose_tokens_see_later_ones_is_refused(tmp_path: Path) -> None:
    BertConfig(architectures=["BertForMaskedLM"], num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"BertLMHeadModel cannot be served: it attends to later tokens, too"):
        read_spec(tmp_path)


def test_a_native_family_whose_weights_are_pickled_is_left_to_transformers(
    tmp_path: Path, tiny_model_dir: Callable[[str], Path]
) -> None:
    model_dir = altered(tiny_model_dir("llama_tied"), tmp_path / "pickled")
    assert isinstance(read_spec(model_dir), ModelConfig)
    (model_dir / "model.safetensors").rename(model_dir / "pytorch_model.bin")
    assert isinstance(read_spec(model_dir), GeneralSpec)
    with pytest.raises(ModelError, match=r"has its weights as pytorch_model\.bin"):
        read_spec(model_dir, "native")


def test_longrope_bounds_a_text_to_where_its_rotations_change(phi3: Path, tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    keys = {"rope_parameters": rope, "original_max_position_embeddings": 128}
    spec = read_spec(altered(phi3, tmp_path / "long", **keys))
    assert isinstance(spec, GeneralSpec)
    assert spec.max_position_embeddings == 128
    assert [note.partition(":")[0] for note in spec.notes] == ["texts of up to 128 tokens, not 512"]
    with pytest.raises(EngineConfigError, match=r"256 is over the model's 128 positions; texts of up to 128 tokens"):
        longest_sequence(spec, EngineConfig(max_model_len=256), 1000)


def test_keys_and_values_that_are_stored_expanded_are_noted(tmp_path: Path) -> None:
    spec = read_spec(build_general_model("deepseek_v3", tmp_path))
    assert isinstance(spec, GeneralSpec)
    expanded, latent = 3 * 4 * (24 + 16) * 4, 3 * (32 + 8) * 4
    assert spec.notes == (
        f"keys and values are stored expanded, {expanded} bytes for each token; their latent form "
        f"would have {latent} bytes",
    )
