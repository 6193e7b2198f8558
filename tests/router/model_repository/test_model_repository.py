"""The folders of a repository."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slipstream.router.model_repository.load_plan import models_at_start
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_error import LoadError, RepositoryError
from slipstream.router.model_repository.sources.repository_watch import RepositoryChanges, changes_between
from tests.support.router.model_folders import PYTHON, TENSORS, write_model

OLD_NS = 1_000_000_000


def test_a_model_in_two_folders_is_served_by_neither(tmp_path: Path) -> None:
    for folder, model in [("a", "M"), ("b", "M"), ("b", "N")]:
        write_model(tmp_path / folder, model)
    (tmp_path / "a" / "README.md").write_text("no model")
    (tmp_path / "a" / ".git").mkdir()
    repository = ModelRepository([tmp_path / "a", tmp_path / "b"])
    assert repository.names() == ["M", "N"]
    assert repository.ambiguous() == ["M"]
    assert repository.read("N").folder == tmp_path / "b" / "N"
    with pytest.raises(RepositoryError, match="failed to poll model 'M': not unique across all model repositories"):
        repository.read("M")
    with pytest.raises(RepositoryError, match="failed to poll model 'no': model not found in any model repository"):
        repository.read("no")
    assert list(repository.stamps()) == ["N"]


def test_links_that_lead_in_a_circle_keep_no_model_from_being_read(tmp_path: Path) -> None:
    write_model(tmp_path, "M")
    before = ModelRepository([tmp_path]).stamps()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "M" / "circle").symlink_to("circle")
    repository = ModelRepository([tmp_path])
    assert repository.names() == ["M"]
    assert repository.read("M").versions == ("1",)
    assert repository.stamps() == before


def test_a_configuration_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "M")
    (tmp_path / "M" / "config.pbtxt").unlink()
    os.mkfifo(tmp_path / "M" / "config.pbtxt")
    with pytest.raises(RepositoryError) as raised:
        ModelRepository([tmp_path]).read("M")
    assert "it is no file" in raised.value.cause


@pytest.mark.parametrize("name", ["..", "../M", "a/b", "a\0"])
def test_a_name_cannot_leave_the_repository(tmp_path: Path, name: str) -> None:
    write_model(tmp_path, "M")
    (tmp_path / "repository").mkdir()
    with pytest.raises(RepositoryError, match="invalid model name"):
        ModelRepository([tmp_path / "repository"]).read(name)
    with pytest.raises(RepositoryError, match="invalid model name"):
        ModelRepository([tmp_path / "repository"]).read(name, "{}", {"1/model.py": b""})


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", ("11",)),
        ("version_policy { latest { num_versions: 2 } }", ("2", "11")),
        ("version_policy { all {} }", ("0", "1", "2", "11")),
        ("version_policy { specific { versions: [ 1, 7, 11 ] } }", ("1", "11")),
    ],
)
def test_the_policy_selects_among_the_folders_that_are_versions(
    tmp_path: Path, policy: str, versions: tuple[str, ...]
) -> None:
    folders = ("1", "2", "11", "0", "010", "3abc", "x", "warmup", "configs", "initial_state")
    write_model(tmp_path, "M", f"{PYTHON} {policy}", folders)
    assert ModelRepository([tmp_path]).read("M").versions == versions


def test_a_model_needs_a_version(tmp_path: Path) -> None:
    write_model(tmp_path, "M", f"{PYTHON} version_policy {{ specific {{ versions: 7 }} }}")
    with pytest.raises(
        LoadError, match=r"^at least one version must be available under the version policy of model 'M'$"
    ):
        ModelRepository([tmp_path]).read("M")


@pytest.mark.parametrize(
    ("name", "config", "file", "expected"),
    [
        ("M", None, "model.py", ("python", "", "model.py")),
        ("M", None, "model.onnx", ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("M", None, "model.pt", ("pytorch", "pytorch_libtorch", "model.pt")),
        ("M", None, "model.pt2", ("pytorch", "torch_aoti", "model.pt2")),
        ("M", None, "model.xml", ("openvino", "", "model.xml")),
        ("M", None, "model.plan", ("tensorrt", "tensorrt_plan", "model.plan")),
        ("M", 'platform: "onnxruntime_onnx"', "x", ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("M", 'backend: "vllm"', "model.json", ("vllm", "", "")),
        ("M", 'backend: "python" default_model_filename: "own.py"', "own.py", ("python", "", "own.py")),
        ("M", 'default_model_filename: "model.py"', "x", ("python", "", "model.py")),
        ("model.own", None, "model.own", ("own", "", "model.own")),
    ],
)
def test_backend_and_file_are_those_of_the_configuration_or_what_the_version_has(
    tmp_path: Path, name: str, config: str | None, file: str, expected: tuple[str, str, str]
) -> None:
    write_model(tmp_path, name, config, file=file)
    message = ModelRepository([tmp_path]).read(name).message
    assert (message.backend, message.platform, message.default_model_filename) == expected


def test_a_model_without_configuration_file_or_backend_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "M", None, file="weights.bin")
    with pytest.raises(RepositoryError, match="Invalid model name: Could not determine backend for model 'M'"):
        ModelRepository([tmp_path]).read("M")
    with pytest.raises(RepositoryError, match=r"config\.pbtxt"):
        ModelRepository([tmp_path], ReadOptions(auto_complete=False)).read("M")


def test_a_configuration_of_another_name_is_read_where_there_is_one(tmp_path: Path) -> None:
    for name in ("M", "N"):
        write_model(tmp_path, name)
    (tmp_path / "M" / "configs").mkdir()
    (tmp_path / "M" / "configs" / "large.pbtxt").write_text(f"{PYTHON} max_batch_size: 64")
    repository = ModelRepository([tmp_path], ReadOptions(config_name="large"))
    assert [repository.read(name).message.max_batch_size for name in ("M", "N")] == [64, 0]


def test_a_load_may_bring_the_configuration(tmp_path: Path) -> None:
    write_model(tmp_path, "M")
    repository = ModelRepository([tmp_path])
    draft = repository.read("M", json.dumps({"backend": "python", "max_batch_size": 4}))
    assert (draft.message.max_batch_size, draft.folder, draft.is_temporary) == (4, tmp_path / "M", False)
    with pytest.raises(RepositoryError, match=r'Invalid config override: .*no field named "max_batch"'):
        repository.read("M", json.dumps({"max_batch": 4}))
    assert repository.read("M").message.max_batch_size == 0


def test_a_load_may_bring_the_files_which_are_then_all_of_the_model(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "M", f"{PYTHON} max_batch_size: 4", ("1", "2"))
    overrides = tmp_path / "overrides"
    repository = ModelRepository([tmp_path / "repository"], ReadOptions(override_folder=overrides))
    files = {"7/model.py": b"x = 1", "7/more/data.bin": b"\x00"}
    draft = repository.read("M", '{"backend": "python"}', files)
    assert draft.revision_of("7") == ""
    assert not draft.keeps_version("7", draft)
    assert (draft.versions, draft.message.max_batch_size) == (("7",), 0)
    assert {name: (draft.folder / name).read_bytes() for name in files} == files
    draft.remove()
    assert not list(overrides.iterdir())
    assert repository.read("new", '{"backend": "python"}', files).name == "new"
    with pytest.raises(RepositoryError, match="'config' must be specified for model file override"):
        repository.read("M", "", files)


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"../evil.py": b""}, "must stay within model directory"),
        ({"/etc/evil": b""}, "must stay within model directory"),
        ({"1/../../evil.py": b""}, "must stay within model directory"),
        ({"": b""}, "must stay within model directory"),
        ({"1": b"", "1/model.py": b""}, "directory has been created as a file"),
        ({"1/\0": b""}, "Invalid file parameter"),
    ],
)
def test_files_of_a_load_stay_in_their_folder_and_are_removed_if_refused(
    tmp_path: Path, files: dict[str, bytes], text: str
) -> None:
    overrides = tmp_path / "overrides"
    repository = ModelRepository([tmp_path], ReadOptions(override_folder=overrides))
    with pytest.raises(RepositoryError, match=text):
        repository.read("M", '{"backend": "python"}', files)
    assert not list(overrides.iterdir())
    assert not list(tmp_path.rglob("evil.py"))


def test_models_to_load_at_the_start() -> None:
    names = ["a", "b"]
    assert models_at_start("none", names, []) == names
    assert models_at_start("poll", names, []) == names
    assert models_at_start("explicit", names, []) == []
    assert models_at_start("explicit", names, ["b", "no", "b"]) == ["b", "no"]
    assert models_at_start("explicit", names, ["*"]) == names
    with pytest.raises(ValueError, match=r"Wildcard model name '\*' must be the ONLY startup model .* got \*, a"):
        models_at_start("explicit", names, ["*", "a"])


def test_poll_sees_what_has_changed(tmp_path: Path) -> None:
    for name in ("same", "code", "config", "version", "deep", "gone", "older", "fewer"):
        write_model(tmp_path, name)
        (tmp_path / name / "1" / "data").mkdir()
        (tmp_path / name / "1" / "data" / "file").write_text("")
    for path in tmp_path.rglob("*"):
        os.utime(path, ns=(2 * OLD_NS, 2 * OLD_NS))
    (tmp_path / "same" / "1" / "back").symlink_to(tmp_path / "same")
    repository = ModelRepository([tmp_path])
    before = repository.stamps()
    (tmp_path / "same" / "1" / "__pycache__").mkdir()
    (tmp_path / "same" / "1" / "__pycache__" / "model.pyc").write_text("")
    (tmp_path / "same" / "1" / ".model.py.swp").write_text("")
    assert not changes_between(before, repository.stamps())
    (tmp_path / "code" / "1" / "model.py").write_text("x")
    (tmp_path / "config" / "config.pbtxt").write_text(PYTHON)
    (tmp_path / "version" / "2").mkdir()
    (tmp_path / "deep" / "1" / "data" / "file").write_text("x")
    (tmp_path / "fewer" / "1" / "data" / "file").unlink()
    (tmp_path / "gone").rename(tmp_path / "new")
    os.utime(tmp_path / "older" / "1" / "model.py", ns=(OLD_NS, OLD_NS))
    os.utime(tmp_path / "older" / "config.pbtxt", ns=(OLD_NS, OLD_NS))
    assert changes_between(before, repository.stamps()) == RepositoryChanges(
        added=("new",), changed=("code", "config", "deep", "fewer", "older", "version"), removed=("gone",)
    )


def test_a_version_is_kept_if_only_instances_or_other_versions_change(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "M", PYTHON)
    for path in tmp_path.rglob("*"):
        os.utime(path, ns=(OLD_NS, OLD_NS))
    repository = ModelRepository([tmp_path])
    before = repository.read("M")

    def write(config: str) -> None:
        (folder / "config.pbtxt").write_text(config)

    assert repository.read("M").keeps_version("1", before)
    assert ModelRepository([tmp_path]).read("M").revision_of("1") == before.revision_of("1")
    write(f"{PYTHON} instance_group {{ count: 3 }} version_policy {{ all {{}} }}")
    (folder / "2").mkdir()
    assert repository.read("M").keeps_version("1", before)
    write(f"{PYTHON} max_batch_size: 3")
    assert not repository.read("M").keeps_version("1", before)
    write(PYTHON)
    assert repository.read("M").keeps_version("1", before)
    (folder / "1" / "model.py").write_text("x")
    assert not repository.read("M").keeps_version("1", before)
    before = repository.read("M")
    (folder / "labels.txt").write_text("x")
    assert not repository.read("M").keeps_version("1", before)


def test_an_ensemble_is_read_with_its_steps(tmp_path: Path) -> None:
    step = 'step { model_name: "X" input_map { key: "I" value: "A" } output_map { key: "O" value: "B" } }'
    write_model(tmp_path, "E", f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {step} }}')
    options = ReadOptions(backends=frozenset({"python", ""}))
    spec = ModelRepository([tmp_path], options).read("E").complete("1")
    assert (spec.platform, spec.backend, spec.instance_groups) == ("ensemble", "", ())
    config = json.loads(spec.config_json)
    assert config["ensemble_scheduling"]["step"][0]["input_map"] == {"I": "A"}
    assert "optimization" not in config
