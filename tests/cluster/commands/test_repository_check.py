"""`slipstream check` on a model repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cluster.commands.checking.check_command import check_command

ROOT = Path(__file__).parents[3]


def checked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(check_command, ["--elsewhere", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A repository with a good model and one that is broken in two ways."""
    for name, config in (("good", ""), ("bad", 'max_batch_size: -1\ninput [{ name: "A" data_type: TYPE_FP32 }]')):
        version = tmp_path / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text("class TritonPythonModel:\n    pass\n")
        (version.parent / "config.pbtxt").write_text(f'backend: "python"\n{config}')
    return tmp_path / "models"


def test_the_models_to_try_have_no_faults() -> None:
    code, output = checked(str(ROOT / "configs/repository"))
    assert code == 0
    assert f"ok: the models in {ROOT / 'configs/repository'}, HTTP port 8000" in output


def test_a_repository_that_is_served_meanwhile_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    why_not_there = "slipstream.cluster.commands.checking.start_check.why_not_there"
    monkeypatch.setattr(why_not_there, lambda _: "port 8000 is in use")
    folder = ROOT / "configs/repository"
    result = CliRunner().invoke(check_command, [str(folder)])
    assert result.exit_code == 0
    assert f"warning: {folder}: port 8000 is in use" in result.output


def test_every_fault_is_named_with_file_and_field(broken: Path) -> None:
    code, output = checked(str(broken))
    assert code == 2
    file = broken / "bad/config.pbtxt"
    assert f"{file}: max_batch_size: 'max_batch_size' must be non-negative value for bad" in output
    assert f"{file}: input[0].dims: model input 'A' must specify 'dims' for bad" in output
    assert "good/" not in output


def test_where_the_cluster_starts_all_the_same_faults_of_models_are_warnings(broken: Path) -> None:
    config = broken.parent / "c.yaml"
    config.write_text("repository: {paths: [models], exit_on_error: false}")
    code, output = checked(str(config))
    assert code == 0
    assert "warning" in output
    assert "max_batch_size" in output


def with_settings(tmp_path: Path, settings: str) -> str:
    version = tmp_path / "models/good/1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("class TritonPythonModel:\n    pass\n")
    (version.parent / "config.pbtxt").write_text('backend: "python"')
    (tmp_path / "c.yaml").write_text(f"repository: {{paths: [models], {settings}}}")
    return str(tmp_path / "c.yaml")


def test_a_setting_of_a_model_that_never_comes_is_a_fault(tmp_path: Path) -> None:
    path = with_settings(tmp_path, "instances: {good: {count: 2}, godo: {count: 2}}")
    code, output = checked(path)
    assert code == 2
    assert f"{path}: repository.instances.godo: the repository has no model 'godo'" in output
    assert "instances.good:" not in output


@pytest.mark.parametrize("mode", ["control_mode: poll", "control_mode: explicit", "exit_on_error: false"])
def test_a_setting_of_a_model_that_may_come_later_is_a_warning(tmp_path: Path, mode: str) -> None:
    code, output = checked(with_settings(tmp_path, f"{mode}, instances: {{godo: {{count: 2}}}}"))
    assert code == 0
    assert "warning" in output
    assert "repository.instances.godo: the repository has no model 'godo'" in output


def test_a_model_to_load_at_the_start_has_to_be_there(tmp_path: Path) -> None:
    code, output = checked(with_settings(tmp_path, "control_mode: explicit, load_models: [good, godo]"))
    assert code == 2
    assert "repository.load_models.1: the repository has no model 'godo'" in output


def test_an_endpoint_without_its_model_is_a_warning(tmp_path: Path) -> None:
    code, output = checked(with_settings(tmp_path, "endpoints: {embeddings: {vectors: {model: godo}, good: {}}}"))
    assert code == 0
    assert "repository.endpoints.embeddings.vectors: the repository has no model 'godo'" in output
    assert "embeddings.good:" not in output
