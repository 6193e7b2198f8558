"""The backend of ONNX files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx import numpy_helper

from slipstream.workers.backends.backend import BackendError, ModelContext
from slipstream.workers.backends.onnxruntime import backend
from slipstream.workers.backends.onnxruntime.session import session_options
from tests.support.workers.model_contexts import Configured, context_of
from tests.support.workers.onnx_models import write_add_sub, write_identity, write_onnx
from tests.workers.backends.contract import BackendContract, Sample

ADD_SUB: tuple[list[Configured], list[Configured]] = (
    [("A", "FP32", [4]), ("B", "FP32", [4])],
    [("SUM", "FP32", [4]), ("DIFF", "FP32", [4])],
)
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


class TestContract(BackendContract):
    backend = backend

    def sample(self, folder: Path) -> Sample:
        model = context_of(write_add_sub(folder / "model.onnx"), *ADD_SUB)
        return Sample(model, {"A": ROWS, "B": 3 * ROWS}, {"SUM": 4 * ROWS, "DIFF": -2 * ROWS})


def identity(folder: Path, datatype: str) -> ModelContext:
    path = write_identity(folder / "model.onnx", datatype)
    return context_of(path, [("IN", datatype, [2])], [("OUT", datatype, [2])])


def bare(path: Path, **config: Any) -> ModelContext:
    """A configuration that says nothing of inputs and outputs."""
    return context_of(path, max_batch_size=config.pop("max_batch_size", 0), **config)


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("BOOL", np.array([[True, False]])),
        ("UINT8", np.array([[1, 255]], np.uint8)),
        ("INT64", np.array([[-1, 2**60]])),
        ("FP16", np.array([[0.5, -2.0]], np.float16)),
        ("BF16", np.array([[0x3F80, 0xC000]], np.uint16)),
        ("FP64", np.array([[0.1, 1e300]])),
        ("BYTES", np.array([[b"text", "ü".encode()]], dtype=object)),
    ],
)
def test_datatypes_go_through_unchanged(tmp_path: Path, datatype: str, array: np.ndarray[Any, Any]) -> None:
    model = backend.load(identity(tmp_path, datatype))
    (output,) = model.execute({"IN": array}, ["OUT"]).values()
    if datatype == "BYTES":
        assert output.tolist() == [["text", "ü"]]
    else:
        assert output.dtype == array.dtype
        np.testing.assert_array_equal(output, array)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    model = backend.load(identity(tmp_path, "BYTES"))
    with pytest.raises(BackendError, match="input 'IN' must be text in UTF-8") as raised:
        model.execute({"IN": np.array([[b"a", b"\xff"]], dtype=object)}, ["OUT"])
    assert raised.value.code == "INVALID_ARG"


def test_a_file_whose_shapes_begin_with_a_free_size_is_completed_with_batches(tmp_path: Path) -> None:
    config = backend.complete(bare(write_add_sub(tmp_path / "model.onnx")))
    assert (config["max_batch_size"], config["dynamic_batching"]) == (4, {})
    assert config["input"] == [{"name": name, "data_type": "TYPE_FP32", "dims": [4]} for name in "AB"]
    assert [output["name"] for output in config["output"]] == ["SUM", "DIFF"]


def test_completion_without_batches_keeps_the_first_dimension(tmp_path: Path) -> None:
    path = write_add_sub(tmp_path / "model.onnx", shape=[2, None])
    config = backend.complete(bare(path))
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert config["input"][0]["dims"] == [2, -1]
    with pytest.raises(BackendError, match="autofill failed for model 'm': model does not support batching while"):
        backend.complete(bare(path, max_batch_size=8))


def test_completion_of_one_number_a_row_has_a_reshape(tmp_path: Path) -> None:
    config = backend.complete(bare(write_identity(tmp_path / "model.onnx", "FP32", ["n"])))
    assert config["input"] == [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}]


@pytest.mark.parametrize(("setting", "expected"), [("16", 16), ("1", 1), ("0", 0)])
def test_the_batch_size_of_completion_is_a_setting_of_the_backend(tmp_path: Path, setting: str, expected: int) -> None:
    model = bare(write_add_sub(tmp_path / "model.onnx"), settings={"default-max-batch-size": setting})
    config = backend.complete(model)
    assert config["max_batch_size"] == expected
    assert ("dynamic_batching" in config) == (expected > 1)
    assert config["input"][0]["dims"] == ([4] if expected else [-1, 4])


def test_only_what_is_missing_is_completed(tmp_path: Path) -> None:
    path = write_add_sub(tmp_path / "model.onnx")
    model = context_of(path, [("A", "FP32", [-1])], max_batch_size=2, sequence_batching={})
    config = backend.complete(model)
    assert [tensor["name"] for tensor in config["input"]] == ["A"]
    assert len(config["output"]) == 2
    assert config["max_batch_size"] == 2
    assert "dynamic_batching" not in config


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        (
            [("A", "FP32", [4])],
            ADD_SUB[1],
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            [("A", "FP32", [4]), ("C", "FP32", [4])],
            ADD_SUB[1],
            "unexpected inference input 'C', allowed inputs are: A, B",
        ),
        (
            [("A", "INT32", [4]), ("B", "FP32", [4])],
            ADD_SUB[1],
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'A', model provides "
            "TYPE_FP32",
        ),
        (
            [("A", "FP32", [4]), ("B", "FP32", [5])],
            ADD_SUB[1],
            "model 'm', tensor 'B': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,5])",
        ),
        (ADD_SUB[0], [("OUT", "FP32", [4])], "unexpected inference output 'OUT', allowed outputs are: SUM, DIFF"),
        (
            ADD_SUB[0],
            [("SUM", "FP32", [-1])],
            "model 'm', tensor 'SUM': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,-1])",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_the_file_is_refused_as_in_triton(
    tmp_path: Path, inputs: list[Configured], outputs: list[Configured], text: str
) -> None:
    with pytest.raises(BackendError) as raised:
        backend.load(context_of(write_add_sub(tmp_path / "model.onnx"), inputs, outputs))
    assert raised.value.message == text
    assert raised.value.code == "INVALID_ARG"


def test_a_file_with_a_fixed_batch_cannot_be_batched(tmp_path: Path) -> None:
    path = write_add_sub(tmp_path / "model.onnx", shape=[2, 4])
    with pytest.raises(BackendError, match=r"first dimension must be -1; but shape expected by the model is \[2,4\]"):
        backend.load(context_of(path, *ADD_SUB))


def test_a_model_without_batches_has_the_shapes_of_its_configuration(tmp_path: Path) -> None:
    path = write_add_sub(tmp_path / "model.onnx", shape=[None, 4])
    pair = ([(name, "FP32", [-1, 4]) for name in "AB"], [("SUM", "FP32", [-1, 4])])
    model = backend.load(context_of(path, *pair, max_batch_size=0))
    np.testing.assert_array_equal(model.execute({"A": ROWS, "B": ROWS}, ["SUM"])["SUM"], 2 * ROWS)


def test_scalars_have_one_element_in_the_configuration(tmp_path: Path) -> None:
    path = write_identity(tmp_path / "model.onnx", "FP32", [])
    model = backend.load(context_of(path, [("IN", "FP32", [1])], [("OUT", "FP32", [1])], max_batch_size=0))
    output = model.execute({"IN": np.array([3], np.float32)}, ["OUT"])["OUT"]
    assert (output.shape, output[0]) == ((1,), 3)
    with pytest.raises(BackendError, match="scalar tensor 'IN', should only provide 1 in the model configuration"):
        backend.load(context_of(path, [("IN", "FP32", [2])], [("OUT", "FP32", [1])], max_batch_size=0))


def test_an_input_with_a_value_in_the_file_is_optional(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.full(4, 10, np.float32), "B")
    nodes = [("Add", ["A", "B"], ["SUM"])]
    path = write_onnx(
        tmp_path / "model.onnx", nodes, [(name, "FP32", [4]) for name in "AB"], [("SUM", "FP32", [4])], [value]
    )
    model = context_of(path, [("A", "FP32", [4]), ("B", "FP32", [4])], [("SUM", "FP32", [4])], max_batch_size=0)
    model.config["input"][1]["optional"] = True
    loaded = backend.load(model)
    a = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(loaded.execute({"A": a}, ["SUM"])["SUM"], a + 10)
    np.testing.assert_array_equal(loaded.execute({"A": a, "B": a}, ["SUM"])["SUM"], 2 * a)


def test_external_weights_lie_beside_a_file_in_a_folder(tmp_path: Path) -> None:
    write_add_sub(tmp_path / "model.onnx" / "model.onnx")
    model = backend.load(context_of(tmp_path / "model.onnx", *ADD_SUB))
    np.testing.assert_array_equal(model.execute({"A": ROWS, "B": ROWS}, ["SUM"])["SUM"], 2 * ROWS)


def test_settings_of_the_configuration_reach_the_session(tmp_path: Path) -> None:
    parameters = {
        "intra_op_thread_count": "3",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "false",
    }
    options = session_options(context_of(tmp_path, parameters=parameters, optimization={"graph": {"level": -1}}))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert (options.execution_mode.name, options.graph_optimization_level.name) == (
        "ORT_PARALLEL",
        "ORT_ENABLE_BASIC",
    )
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern


def test_the_instances_of_a_model_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.workers.backends.model_settings.num_cores", lambda: 8)
    groups = [{"count": 2, "kind": "KIND_CPU"}, {"count": 1, "kind": "KIND_CPU"}, {"count": 4, "kind": "KIND_GPU"}]
    options = session_options(context_of(tmp_path, instance_group=groups))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 2)
    options = session_options(context_of(tmp_path, settings={"intra_op_thread_count": "5"}))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (5, 8)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"parameters": {"execution_mode": "2"}}, "Expected values for  execution_mode are 0 or 1 but got 2"),
        ({"parameters": {"intra_op_thread_count": "many"}}, "intra_op_thread_count must be a whole number, got 'many'"),
        (
            {"optimization": {"execution_accelerators": {"cpu_execution_accelerator": [{"name": "abacus"}]}}},
            "unknown Execution Accelerator 'abacus' is requested",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, config: dict[str, Any], text: str) -> None:
    with pytest.raises(BackendError, match=text):
        backend.load(context_of(write_add_sub(tmp_path / "model.onnx"), *ADD_SUB, **config))


def test_a_gpu_that_the_package_cannot_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    model = replace(context_of(write_add_sub(tmp_path / "model.onnx"), *ADD_SUB), kind="GPU")
    with pytest.raises(BackendError, match="'m_0_0' is to run on a GPU, which the installed onnxruntime cannot use"):
        backend.load(model)


def test_a_failing_operator_has_the_text_of_onnx_runtime(tmp_path: Path) -> None:
    path = write_onnx(
        tmp_path / "model.onnx",
        [("Add", ["A", "B"], ["SUM"])],
        [("A", "FP32", ["n", "a"]), ("B", "FP32", ["n", "b"])],
        [("SUM", "FP32", ["n", "c"])],
    )
    shapes = ([("A", "FP32", [-1]), ("B", "FP32", [-1])], [("SUM", "FP32", [-1])])
    model = backend.load(context_of(path, *shapes))
    with pytest.raises(BackendError, match=r"onnx runtime error.*Add"):
        model.execute({"A": np.ones((1, 2), np.float32), "B": np.ones((1, 3), np.float32)}, ["SUM"])


START = {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1], "int32_false_true": []}
SEQUENCE = {"control_input": [{"name": "START", "control": [START]}]}


def test_inputs_that_the_server_adds_to_sequences_must_be_in_the_file(tmp_path: Path) -> None:
    path = write_onnx(
        tmp_path / "model.onnx",
        [("Add", ["IN", "START"], ["OUT"])],
        [("IN", "FP32", ["n", 1]), ("START", "FP32", ["n", 1])],
        [("OUT", "FP32", ["n", 1])],
    )
    pair: tuple[list[Configured], list[Configured]] = ([("IN", "FP32", [1])], [("OUT", "FP32", [1])])
    model = backend.load(context_of(path, *pair, sequence_batching=SEQUENCE))
    one = np.ones((1, 1), np.float32)
    np.testing.assert_array_equal(model.execute({"IN": one, "START": one}, ["OUT"])["OUT"], [[2]])
    with pytest.raises(BackendError, match="configuration expects 1 inputs, model provides 2"):
        backend.load(context_of(path, *pair))
    alone = write_identity(tmp_path / "alone.onnx", "FP32", ["n", 1])
    with pytest.raises(BackendError, match="sequence control 'START', but model does not provide that input"):
        backend.load(context_of(alone, *pair, sequence_batching=SEQUENCE))
