"""Models that are refused before they are served: the sentence names what is wrong with them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from slipstream.workers.models.description.weights_check import check_general_weights
from slipstream.workers.models.directory import model_spec
from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.directory.model_spec import GeneralSpec, check_tp
from slipstream.workers.models.general.examination.examination import examined
from tests.support.workers.custom_code import MODEL_CODE, build_custom_code_model
from tests.support.workers.general_models import build_general_model


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_general_model("phi3", tmp_path_factory.mktemp("phi3"))


def refusal(model_dir: Path, **keys: object) -> str:
    path = model_dir / "config.json"
    before = path.read_bytes()
    path.write_text(json.dumps(json.loads(before) | keys))
    try:
        examined(model_dir, False)
    except ModelError as error:
        return str(error)
    finally:
        path.write_bytes(before)
    return ""


def test_a_class_that_transformers_does_not_have_is_refused(phi3: Path) -> None:
    assert "config.json: architectures: 'NoSuchForCausalLM' is not supported" in refusal(
        phi3, architectures=["NoSuchForCausalLM"]
    )
    assert refusal(phi3, architectures=[]) == "", "the model's type says what it is"


def test_an_activation_that_transformers_does_not_have_is_refused(phi3: Path) -> None:
    assert "config.json: hidden_act: 'sillu' is not supported" in refusal(phi3, hidden_act="sillu")


def test_what_transformers_says_in_several_lines_is_kept(phi3: Path) -> None:
    said = refusal(phi3, rms_norm_eps="x")
    assert "config.json: transformers cannot read it" in said
    assert "Field 'rms_norm_eps' expected float, got str (value: 'x')" in said


def test_positions_that_transformers_does_not_have_are_refused_by_their_key(tmp_path: Path) -> None:
    said = refusal(
        build_general_model("mixtral", tmp_path), rope_parameters={"rope_type": "nope", "rope_theta": 10000.0}
    )
    assert "config.json: rope_parameters.rope_type: 'nope' is not supported" in said


def test_where_a_model_cannot_be_run_keys_that_are_0_are_named(tmp_path: Path) -> None:
    model_dir = build_general_model("deepseek_v3", tmp_path)
    assert refusal(model_dir) == ""
    assert "ZeroDivisionError" in (said := refusal(model_dir, n_group=0))
    assert said.endswith("; config.json has 0 for n_group")


@pytest.mark.parametrize(
    ("dtype", "why"), [("F99", "which transformers does not load"), ("I32", "without a quantization_config")]
)
def test_weights_that_are_no_numbers_are_named(dtype: str, why: str, tmp_path: Path) -> None:
    model_dir = build_general_model("phi3", tmp_path)
    description = examined(model_dir, False)
    check_general_weights(model_dir, description)
    path = model_dir / "model.safetensors"
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    path.write_bytes(data[:8] + data[8 : 8 + size].replace(b'"F32"', f'"{dtype}"'.encode()) + data[8 + size :])
    with pytest.raises(ModelError, match=rf"model\.safetensors: tensor .*\.weight has dtype {dtype}, {why}"):
        check_general_weights(model_dir, description)


def test_code_that_leaves_by_exit_is_a_failure_of_its_model(tmp_path: Path) -> None:
    model_dir = build_custom_code_model(tmp_path / "twisted")
    leaving = "    def __init__(self, config):\n        raise SystemExit(3)\n"
    (model_dir / "modeling_twisted.py").write_text(MODEL_CODE + leaving)
    with pytest.raises(ModelError, match="transformers cannot build the model: SystemExit: 3"):
        examined(model_dir, True)


def test_tensor_parallelism_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = GeneralSpec("Some", 8, 16, "float32", KvSpec.uniform(1, 8, (None,)))
    check_tp(spec, 1)
    monkeypatch.setattr(model_spec, "find_spec", lambda name: None)
    check_tp(spec, 1)
    with pytest.raises(ModelError, match=r"needs the package accelerate: pip install 'slipstream\[parallel\]'"):
        check_tp(spec, 2)
