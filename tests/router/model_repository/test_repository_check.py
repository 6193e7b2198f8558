"""All faults of a repository, with file and field, without loading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_check import check_repository
from slipstream.router.tensors import backend_packages
from tests.support.router.model_folders import PYTHON, TENSORS, write_model

CLASS = "class TritonPythonModel: pass\n"
COMPLETING = "class TritonPythonModel:\n    def auto_complete_config(config): return config\n"
OPTIONS = ReadOptions(backends=frozenset({"python", ""}))


def write(repository: Path, name: str, config: str | None = PYTHON, code: str = CLASS) -> Path:
    folder = write_model(repository, name, config)
    (folder / "1" / "model.py").write_text(code)
    return folder


def problems(repository: Path, options: ReadOptions = OPTIONS) -> list[tuple[str, str, str]]:
    found = check_repository([repository], options)
    return [(str(Path(one.file).relative_to(repository)), one.field, one.text) for one in found]


def test_a_repository_that_can_be_loaded_has_no_problems(tmp_path: Path) -> None:
    write(tmp_path, "A")
    write(tmp_path, "B", None, COMPLETING)
    write(tmp_path, "C", 'backend: "python" input { name: "X" }', COMPLETING)
    write(tmp_path, "D", code="from own import *\n")
    write(tmp_path, "E", code="from own import Model as TritonPythonModel\n")
    write(tmp_path, "F", code="TritonPythonModel = object\n")
    step = 'step { model_name: "A" input_map { key: "A" value: "A" } output_map { key: "B" value: "B" } }'
    write_model(tmp_path, "G", f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {step} }}')
    assert problems(tmp_path) == []


def test_a_backend_whose_package_is_missing_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "M", f'backend: "onnxruntime" {TENSORS}')
    (tmp_path / "M" / "1" / "model.onnx").write_bytes(b"")
    options = ReadOptions(backends=frozenset({"onnxruntime"}))
    monkeypatch.setattr(backend_packages, "find_spec", lambda name: None)
    wanted = "needs the package onnxruntime, which is not installed: pip install 'slipstream[onnx]'"
    assert problems(tmp_path, options) == [("M/config.pbtxt", "backend", f"backend 'onnxruntime' {wanted}")]
    monkeypatch.setattr(backend_packages, "find_spec", lambda name: object())
    assert problems(tmp_path, options) == []


def test_every_fault_is_named_with_its_field(tmp_path: Path) -> None:
    write(
        tmp_path,
        "M",
        'backend: "python" max_batch_size: 2 dynamic_batching { preferred_batch_size: 4 priority_levels: 2 }'
        'input { name: "X" dims: 1 } output { name: "Y" data_type: TYPE_FP32 } instance_group { kind: KIND_GPU }',
    )
    assert problems(tmp_path) == [
        (
            "M/config.pbtxt",
            "dynamic_batching.preferred_batch_size",
            "dynamic batching preferred size must be <= max batch size for M",
        ),
        (
            "M/config.pbtxt",
            "dynamic_batching.default_priority_level",
            "default priority level must be in range [1, 2] for M",
        ),
        (
            "M/config.pbtxt",
            "instance_group[0].kind",
            "instance group M_0 of model M has kind KIND_GPU but no GPUs are available",
        ),
        ("M/config.pbtxt", "input[0].data_type", "model input 'X' must specify 'data_type' for M"),
        ("M/config.pbtxt", "output[0].dims", "model output 'Y' must specify 'dims' for M"),
    ]


@pytest.mark.parametrize(
    ("config", "code", "file", "field", "text"),
    [
        ("bogus: 1", CLASS, "config.pbtxt", "bogus", 'has no field named "bogus"'),
        ('name: "N"', CLASS, "config.pbtxt", "name", "unexpected directory name 'M' for model 'N'"),
        (
            f'backend: "own" {TENSORS}',
            CLASS,
            "config.pbtxt",
            "backend",
            "unable to find backend library for backend 'own'",
        ),
        (PYTHON, "def f(:\n", "1/model.py", "line 1", "invalid syntax"),
        (PYTHON, "x = 1\n", "1/model.py", "", "has no class TritonPythonModel"),
        (f'{PYTHON} default_model_filename: "no.py"', CLASS, "1/no.py", "", "the model's file is missing"),
        (
            f"{PYTHON} version_policy {{ specific {{ versions: 3 }} }}",
            CLASS,
            "",
            "version_policy",
            "at least one version must be available",
        ),
        (
            'backend: "python" output { name: "Y" data_type: TYPE_FP32 dims: 1 label_filename: "no.txt" }',
            CLASS,
            "config.pbtxt",
            "output.label_filename",
            "No such file",
        ),
        (
            f"{PYTHON} model_warmup {{ inputs {{ "
            'key: "A" value { data_type: TYPE_FP32 dims: 4 input_data_file: "no" } } }',
            CLASS,
            "config.pbtxt",
            "model_warmup",
            "there is no file",
        ),
        (
            f"{PYTHON} model_warmup {{ name: 'w' batch_size: 1 inputs {{ "
            'key: "NOPE" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }',
            CLASS,
            "config.pbtxt",
            "model_warmup[0].inputs",
            "sample 'w' has no input A",
        ),
    ],
)
def test_a_fault_is_named_with_its_file(
    tmp_path: Path, config: str, code: str, file: str, field: str, text: str
) -> None:
    write(tmp_path, "M", config, code)
    ((found_file, found_field, found_text),) = problems(tmp_path)
    assert (Path(found_file), found_field) == (Path("M") / file, field)
    assert text in found_text


def test_an_ensemble_of_models_that_are_not_there_is_named(tmp_path: Path) -> None:
    step = 'step { model_name: "no" input_map { key: "I" value: "A" } output_map { key: "O" value: "B" } }'
    write_model(tmp_path, "E", f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {step} }}')
    ((file, field, text),) = problems(tmp_path)
    assert (file, field) == ("E/config.pbtxt", "ensemble_scheduling.step[0].model_name")
    assert text == "ensemble E contains models that are not available or ambiguous: no"


def test_an_ensemble_whose_steps_do_not_fit_is_named(tmp_path: Path) -> None:
    write(tmp_path, "M", 'backend: "python" ' + TENSORS.replace("TYPE_FP32", "TYPE_INT8"))
    step = 'step { model_name: "M" input_map { key: "A" value: "A" } output_map { key: "B" value: "B" } }'
    write_model(tmp_path, "E", f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {step} }}')
    ((file, field, text),) = problems(tmp_path)
    assert (file, field) == ("E/config.pbtxt", "ensemble_scheduling")
    assert text == (
        "in ensemble E, ensemble tensor A: inconsistent data type: TYPE_FP32 is inferred from model E while TYPE_INT8 "
        "is inferred from model M"
    )


def test_ensembles_that_are_made_of_each_other_are_named(tmp_path: Path) -> None:
    step = 'step { model_name: "M" input_map { key: "A" value: "A" } output_map { key: "B" value: "B" } }'
    for name, other in (("E", "F"), ("F", "E")):
        steps = step.replace('"M"', f'"{other}"')
        write_model(tmp_path, name, f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {steps} }}')
    assert [text for _, _, text in problems(tmp_path)] == [
        "circular dependency between ensembles: E -> ... -> F -> E",
        "circular dependency between ensembles: F -> ... -> E -> F",
    ]


def test_a_model_in_two_folders_and_a_folder_that_is_missing_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a", "M")
    write(tmp_path / "b", "M")
    found = check_repository([tmp_path / "a", tmp_path / "b"], OPTIONS)
    assert [str(one) for one in found] == [
        f"{tmp_path / folder / 'M'}: model appears in two or more repositories" for folder in ("a", "b")
    ]
    (missing,) = check_repository([tmp_path / "a", tmp_path / "no"], OPTIONS)
    assert missing.file == str(tmp_path / "no")
    assert "No such file or directory" in missing.text
