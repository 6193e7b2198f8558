"""Models that are refused before they are served: the sentence names what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
