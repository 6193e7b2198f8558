"""The backend of PyTorch's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.workers.backends.backend import BackendError
from slipstream.workers.backends.pytorch import backend
from slipstream.workers.backends.pytorch.exported_program import output_paths
from slipstream.workers.backends.pytorch.tensor_names import places_of
from tests.support.workers.model_contexts import Configured, context_of
from tests.workers.backends.contract import BackendContract, Sample

ADD_SUB: tuple[list[Configured], list[Configured]] = (
    [("INPUT__0", "FP32", [4]), ("INPUT__1", "FP32", [4])],
    [("OUTPUT__0", "FP32", [4]), ("OUTPUT__1", "FP32", [4])],
)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


class AddSub(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


class InPlace(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a.mul_(2)


class Cast(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a.to(torch.bfloat16)


class Words(torch.nn.Module):
    def forward(self, words: list[str]) -> list[str]:
        return [word + "!" for word in words]


class ByName(torch.nn.Module):
    def forward(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"SUM": given["A"] + given["B"], "DIFF": given["A"] - given["B"]}


class WithDefault(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        return a if b is None else a + b


class Total(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a.sum()


def write_script(folder: Path, module: torch.nn.Module) -> Path:
    path = folder / "model.pt"
    torch.jit.script(module).save(str(path))
    return path


def write_export(path: Path, *, is_batched: bool = True) -> Path:
    sizes = {0: torch.export.Dim("batch")} if is_batched else None
    examples = torch.zeros(2, 4), torch.zeros(2, 4)
    program = torch.export.export(AddSub(), examples, dynamic_shapes={"a": sizes, "b": sizes})
    torch.export.save(program, path)
    return path


def sample_of(path: Path) -> Sample:
    inputs = {"INPUT__0": ROWS, "INPUT__1": 3 * ROWS}
    return Sample(context_of(path, *ADD_SUB), inputs, {"OUTPUT__0": 4 * ROWS, "OUTPUT__1": -2 * ROWS})


@pytest.fixture(autouse=True)
def threads_as_before() -> Any:
    """An instance has a process of its own; a test does not."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class TestTorchScript(BackendContract):
    backend = backend

    def sample(self, folder: Path) -> Sample:
        return sample_of(write_script(folder, AddSub()))


class TestExportedProgram(BackendContract):
    backend = backend

    @pytest.fixture(scope="class")
    @staticmethod
    def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
        """Exporting takes long; each test has a file of its own."""
        return write_export(tmp_path_factory.mktemp("exported") / "model.pt2").read_bytes()

    @pytest.fixture(autouse=True)
    def content(self, exported: bytes) -> None:
        self.exported_bytes = exported

    def sample(self, folder: Path) -> Sample:
        path = folder / "model.pt2"
        path.write_bytes(self.exported_bytes)
        return sample_of(path)

    @pytest.mark.parametrize(
        ("inputs", "outputs"),
        [
            (["a", "b"], ["S", "D"]),
            (["ARGS[0]", "ARGS[1]"], ["RESULT[0]", "RESULT[1]"]),
            (["X", "Y"], ["S__0", "D__1"]),
        ],
    )
    def test_names_of_the_program_and_others(self, tmp_path: Path, inputs: list[str], outputs: list[str]) -> None:
        path = self.sample(tmp_path).model.model_file
        pair = ([(name, "FP32", [4]) for name in inputs], [(name, "FP32", [4]) for name in outputs])
        model = backend.load(context_of(path, *pair))
        computed = model.execute({inputs[0]: ROWS, inputs[1]: 2 * ROWS}, outputs[1:])
        np.testing.assert_array_equal(computed[outputs[1]], -ROWS)

    def test_a_configuration_that_does_not_fit_the_program_is_refused(self, tmp_path: Path) -> None:
        model = self.sample(tmp_path).model
        model.config["input"][0]["data_type"] = "TYPE_INT32"
        text = "configuration expects datatype TYPE_INT32 for input 'INPUT__0', model provides TYPE_FP32"
        with pytest.raises(BackendError, match=text):
            backend.load(model)


def test_a_program_with_a_fixed_batch_cannot_be_batched(tmp_path: Path) -> None:
    path = write_export(tmp_path / "model.pt2", is_batched=False)
    with pytest.raises(BackendError, match=r"first dimension must be -1; but shape expected by the model is \[2,4\]"):
        backend.load(context_of(path, *ADD_SUB))


def test_a_model_may_write_to_its_inputs_but_nobody_sees_it(tmp_path: Path) -> None:
    pair: tuple[list[Configured], list[Configured]] = ([("a", "FP32", [4])], [("OUT", "FP32", [4])])
    model = backend.load(context_of(write_script(tmp_path, InPlace()), *pair))
    given = ROWS.copy()
    np.testing.assert_array_equal(model.execute({"a": given}, ["OUT"])["OUT"], 2 * ROWS)
    np.testing.assert_array_equal(given, ROWS)


def test_bfloat16_is_its_bits(tmp_path: Path) -> None:
    model = backend.load(context_of(write_script(tmp_path, Cast()), [("a", "BF16", [2])], [("OUT", "BF16", [2])]))
    bits = np.array([[0x3F80, 0xC000]], np.uint16)
    output = model.execute({"a": bits}, ["OUT"])["OUT"]
    np.testing.assert_array_equal(output, bits)
    assert output.dtype == np.uint16


def test_lists_of_text_are_inputs_and_outputs(tmp_path: Path) -> None:
    path = write_script(tmp_path, Words())
    model = backend.load(context_of(path, [("words", "BYTES", [1])], [("OUT__0", "BYTES", [1])], max_batch_size=0))
    output = model.execute({"words": np.array(["ü".encode()], dtype=object)}, ["OUT__0"])["OUT__0"]
    assert output.tolist() == ["ü!".encode()]


def test_a_dictionary_of_tensors_has_the_names_of_the_configuration(tmp_path: Path) -> None:
    pair = ([(name, "FP32", [4]) for name in "AB"], [(name, "FP32", [4]) for name in ("DIFF", "SUM")])
    model = backend.load(context_of(write_script(tmp_path, ByName()), *pair))
    outputs = model.execute({"A": ROWS, "B": 2 * ROWS}, ["DIFF", "SUM"])
    np.testing.assert_array_equal(outputs["DIFF"], -ROWS)
    np.testing.assert_array_equal(outputs["SUM"], 3 * ROWS)


def test_an_argument_with_a_default_is_optional(tmp_path: Path) -> None:
    model = context_of(
        write_script(tmp_path, WithDefault()), [("a", "FP32", [4]), ("b", "FP32", [4])], [("OUT", "FP32", [4])]
    )
    model.config["input"][1]["optional"] = True
    loaded = backend.load(model)
    np.testing.assert_array_equal(loaded.execute({"a": ROWS}, ["OUT"])["OUT"], ROWS)
    np.testing.assert_array_equal(loaded.execute({"a": ROWS, "b": ROWS}, ["OUT"])["OUT"], 2 * ROWS)


@pytest.mark.parametrize(
    ("module", "outputs", "text"),
    [
        (
            AddSub(),
            [("OUTPUT__2", "FP32", [4])],
            "The output OUTPUT__2 in the model configuration refers to an output index which doesn't exist. This model "
            "has 2 outputs",
        ),
        (
            AddSub(),
            [("OUTPUT__0", "INT32", [4])],
            "configuration expects datatype TYPE_INT32 for output 'OUTPUT__0', model provides TYPE_FP32",
        ),
        (Total(), [("OUTPUT__0", "FP32", [1])], "output 'OUTPUT__0' is a scalar which is not supported."),
    ],
)
def test_outputs_that_are_not_as_configured_fail_the_execution(
    tmp_path: Path, module: torch.nn.Module, outputs: list[Configured], text: str
) -> None:
    inputs = ADD_SUB[0][: 2 if isinstance(module, AddSub) else 1]
    model = backend.load(context_of(write_script(tmp_path, module), inputs, outputs))
    with pytest.raises(BackendError) as raised:
        model.execute({name: ROWS for name, _, _ in inputs}, [name for name, _, _ in outputs])
    assert raised.value.message == text


def test_a_failing_operator_has_the_text_of_pytorch(tmp_path: Path) -> None:
    model = backend.load(context_of(write_script(tmp_path, AddSub()), *ADD_SUB))
    with pytest.raises(BackendError, match=r"PyTorch execute failure: [\s\S]*must match the size"):
        model.execute({"INPUT__0": ROWS, "INPUT__1": ROWS[:, :3]}, ["OUTPUT__0"])


def test_a_configuration_without_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="must contain at least one input, none were specified"):
        backend.load(context_of(write_script(tmp_path, AddSub()), [], ADD_SUB[1]))


def test_weights_without_code_are_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "model.pt")
    with pytest.raises(BackendError, match=r"has weights but no code \(torch.save\)"):
        backend.load(context_of(tmp_path / "model.pt", *ADD_SUB))


def test_parameters_set_threads(tmp_path: Path) -> None:
    path = write_script(tmp_path, AddSub())
    for name in ("INTRA_OP_THREAD_COUNT", "NUM_THREADS"):
        torch.set_num_threads(1)
        backend.load(context_of(path, *ADD_SUB, parameters={name: "3", "INFERENCE_MODE": "false"}))
        assert torch.get_num_threads() == 3
    with pytest.raises(BackendError, match="INFERENCE_MODE must be true or false, got 'maybe'"):
        backend.load(context_of(path, *ADD_SUB, parameters={"INFERENCE_MODE": "maybe"}))


def test_one_rule_holds_for_all_names() -> None:
    known = [("a", "ARGS[0]"), ("b", "ARGS[1]")]
    assert places_of(["b", "ARGS[0]"], known) == {"b": 1, "ARGS[0]": 0}
    assert places_of(["X__1", "X__0"], known) == {"X__1": 1, "X__0": 0}
    assert places_of(["b", "X__0"], known) == {"b": 0, "X__0": 1}


def test_paths_of_nested_outputs() -> None:
    returned = {"logits": 0, "hidden": (1, {"last": 2})}
    spec = torch.utils._pytree.tree_structure(returned)
    assert output_paths(spec) == (("RESULT[logits]",), ("RESULT[hidden][0]",), ("RESULT[hidden][1][last]",))
    assert output_paths(torch.utils._pytree.tree_structure(0)) == (("RESULT",),)


def test_inputs_that_the_server_adds_to_sequences_are_inputs(tmp_path: Path) -> None:
    control = {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1], "int32_false_true": []}
    sequence = {"control_input": [{"name": "START__1", "control": [control]}]}
    pair: tuple[list[Configured], list[Configured]] = ([("IN__0", "FP32", [1])], [("OUT__0", "FP32", [1])])
    model = backend.load(context_of(write_script(tmp_path, AddSub()), *pair, sequence_batching=sequence))
    one = np.ones((1, 1), np.float32)
    np.testing.assert_array_equal(model.execute({"IN__0": one, "START__1": one}, ["OUT__0"])["OUT__0"], [[2]])
