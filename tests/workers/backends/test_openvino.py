"""The backend of models that OpenVINO reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from slipstream.router.process.container_limits import num_cores
from slipstream.workers.backends.backend import BackendError, ModelContext
from slipstream.workers.backends.openvino import backend
from slipstream.workers.backends.openvino.device_settings import DeviceSettings
from tests.support.workers.model_contexts import Configured, context_of
from tests.support.workers.openvino_models import add_sub, copy_of, write_openvino
from tests.workers.backends.contract import BackendContract, Sample

Array = np.ndarray[Any, Any]
ADD_SUB: tuple[list[Configured], list[Configured]] = (
    [("A", "FP32", [4]), ("B", "FP32", [4])],
    [("SUM", "FP32", [4]), ("DIFF", "FP32", [4])],
)
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


class TestContract(BackendContract):
    backend = backend

    def sample(self, folder: Path) -> Sample:
        model = context_of(write_openvino(folder / "model.xml", add_sub()), *ADD_SUB)
        return Sample(model, {"A": ROWS, "B": 3 * ROWS}, {"SUM": 4 * ROWS, "DIFF": -2 * ROWS})


def of_batches_of_four(folder: Path, **parameters: str) -> ModelContext:
    """The file has the batch size 4."""
    path = write_openvino(folder / "model.xml", add_sub(shape=(4, 4)))
    return context_of(path, *ADD_SUB, parameters=parameters)


@pytest.mark.parametrize(
    ("datatype", "kind", "array"),
    [
        ("BOOL", "boolean", np.array([[True, False]])),
        ("UINT8", "u8", np.array([[1, 255]], np.uint8)),
        ("INT64", "i64", np.array([[-1, 2**30]])),
        ("FP16", "f16", np.array([[0.5, -2.0]], np.float16)),
        ("BF16", "bf16", np.array([[0x3F80, 0xC000]], np.uint16)),
        ("FP64", "f64", np.array([[0.5, -2.0]])),
    ],
)
def test_datatypes_go_through_unchanged(tmp_path: Path, datatype: str, kind: str, array: Array) -> None:
    path = write_openvino(tmp_path / "model.xml", copy_of(kind))
    loaded = backend.load(context_of(path, [("IN", datatype, [2])], [("OUT", datatype, [2])]))
    outputs = loaded.execute({"IN": array}, ["OUT"])
    assert outputs["OUT"].dtype == array.dtype
    np.testing.assert_array_equal(outputs["OUT"], array)
    loaded.close()


def test_a_file_completes_a_configuration(tmp_path: Path) -> None:
    path = write_openvino(tmp_path / "model.xml", add_sub())
    model = context_of(path, max_batch_size=0, settings={"default-max-batch-size": "6"})
    config = backend.complete(model)
    assert (config["max_batch_size"], config["dynamic_batching"]) == (6, {})
    assert config["input"] == [{"name": name, "data_type": "TYPE_FP32", "dims": [4]} for name in "AB"]
    assert [output["name"] for output in config["output"]] == ["SUM", "DIFF"]


def test_a_file_of_one_size_completes_a_configuration_without_batches(tmp_path: Path) -> None:
    path = write_openvino(tmp_path / "model.xml", add_sub(shape=(4, 4)))
    config = backend.complete(context_of(path, max_batch_size=0))
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, [4, 4])
    assert "dynamic_batching" not in config


def test_a_model_of_one_batch_size_is_given_batches_of_any_size(tmp_path: Path) -> None:
    loaded = backend.load(of_batches_of_four(tmp_path))
    for rows in (ROWS, ROWS[:1], np.concatenate((ROWS, ROWS))):
        np.testing.assert_array_equal(loaded.execute({"A": rows, "B": rows}, ["SUM"])["SUM"], 2 * rows)
    loaded.close()


def test_a_fixed_batch_size_is_kept_if_wanted_and_smaller_batches_are_filled_up(tmp_path: Path) -> None:
    loaded = backend.load(of_batches_of_four(tmp_path, SKIP_OV_DYNAMIC_BATCHSIZE="YES", ENABLE_BATCH_PADDING="YES"))
    np.testing.assert_array_equal(loaded.execute({"A": ROWS, "B": ROWS}, ["SUM"])["SUM"], 2 * ROWS)
    loaded.close()
    loaded = backend.load(of_batches_of_four(tmp_path, SKIP_OV_DYNAMIC_BATCHSIZE="YES"))
    with pytest.raises(BackendError, match="input 'A': the model takes batches of 4, got 3; ENABLE_BATCH_PADDING"):
        loaded.execute({"A": ROWS, "B": ROWS}, ["SUM"])
    loaded.close()


def test_a_model_without_batches_is_given_arrays_as_they_are(tmp_path: Path) -> None:
    path = write_openvino(tmp_path / "model.xml", add_sub(shape=(3, 4)))
    described = [[(name, kind, [3, 4]) for name, kind, _ in tensors] for tensors in ADD_SUB]
    loaded = backend.load(context_of(path, *described, max_batch_size=0))
    np.testing.assert_array_equal(loaded.execute({"A": ROWS, "B": ROWS}, ["DIFF"])["DIFF"], 0 * ROWS)
    loaded.close()


def test_an_onnx_file_is_read_as_well(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from tests.support.workers.onnx_models import write_add_sub

    loaded = backend.load(context_of(write_add_sub(tmp_path / "model.onnx"), *ADD_SUB))
    np.testing.assert_array_equal(loaded.execute({"A": ROWS, "B": ROWS}, ["SUM"])["SUM"], 2 * ROWS)
    loaded.close()


def test_instances_do_not_take_more_threads_than_there_are_cores(tmp_path: Path) -> None:
    group = {"name": "m_0", "count": num_cores(), "kind": "KIND_CPU", "gpus": []}
    properties = DeviceSettings.of(context_of(tmp_path / "model.xml", instance_group=[group])).properties
    assert properties["INFERENCE_NUM_THREADS"] == "1"
    assert (properties["NUM_STREAMS"], properties["ENABLE_CPU_PINNING"]) == ("1", "NO")


@pytest.mark.parametrize(
    "names", [("CPU_THREADS_NUM", "CPU_THROUGHPUT_STREAMS"), ("INFERENCE_NUM_THREADS", "NUM_STREAMS")]
)
def test_parameters_have_their_names_of_all_versions(tmp_path: Path, names: tuple[str, str]) -> None:
    parameters = {names[0]: "3", names[1]: "auto", "ENFORCE_BF16": "NO", "PERFORMANCE_HINT": "throughput"}
    properties = DeviceSettings.of(context_of(tmp_path / "model.xml", parameters=parameters)).properties
    assert properties == {
        "INFERENCE_NUM_THREADS": "3",
        "NUM_STREAMS": "AUTO",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "ENABLE_CPU_PINNING": "NO",
        "INFERENCE_PRECISION_HINT": "f32",
    }


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("CPU_THREADS_NUM", "-1", "expected the parameter 'CPU_THREADS_NUM' to be a non-negative number, got -1"),
        ("ENFORCE_BF16", "maybe", "expected the parameter 'ENFORCE_BF16' to be either YES or NO, got maybe"),
        ("PERFORMANCE_HINT", "FAST", "expected the parameter 'PERFORMANCE_HINT' to be one of LATENCY, .* got FAST"),
    ],
)
def test_values_that_a_parameter_cannot_have_are_refused(tmp_path: Path, name: str, value: str, text: str) -> None:
    with pytest.raises(BackendError, match=text):
        DeviceSettings.of(context_of(tmp_path / "model.xml", parameters={name: value}))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([("A", "FP32", [4]), ("C", "FP32", [4])], "unexpected inference input 'C', allowed inputs are: A, B"),
        ([("A", "INT32", [4]), ("B", "FP32", [4])], "configuration expects datatype TYPE_INT32 for input 'A'"),
        ([("A", "FP32", [5]), ("B", "FP32", [4])], r"the model expects 2 dimensions \(shape \[-1,4\]\)"),
    ],
)
def test_a_configuration_that_does_not_fit_the_file_is_refused(
    tmp_path: Path, inputs: list[Configured], text: str
) -> None:
    path = write_openvino(tmp_path / "model.xml", add_sub())
    with pytest.raises(BackendError, match=text):
        backend.load(context_of(path, inputs, ADD_SUB[1]))
