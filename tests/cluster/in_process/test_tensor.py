"""Tensors of a program: what goes in, and how it comes out."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
import torch

import slipstream
from slipstream.cluster.in_process.tensors.device import device_of
from slipstream.cluster.in_process.tensors.tensor import tensor_of


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "float32", "float64"])
def test_an_array_is_shown_by_dlpack_without_a_copy(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = slipstream.Tensor.from_dlpack(array)
    shown = np.from_dlpack(tensor)
    np.testing.assert_array_equal(shown, array)
    assert shown.ctypes.data == tensor.data_ptr == array.ctypes.data
    assert (tensor.size, list(tensor.shape)) == (array.nbytes, [2, 3])


def test_torch_and_a_tensor_share_memory_in_both_directions() -> None:
    given = torch.arange(4, dtype=torch.bfloat16)
    tensor = tensor_of(given)
    assert tensor.data_type is slipstream.DataType.BF16
    assert tensor.data_ptr == given.data_ptr()
    taken: torch.Tensor = torch.utils.dlpack.from_dlpack(tensor)
    assert torch.equal(taken, given)
    assert taken.data_ptr() == given.data_ptr()


def test_a_tensor_keeps_the_memory_of_what_it_was_made_of_and_gives_it_back() -> None:
    owner = np.ones(1000)
    before = sys.getrefcount(owner)
    tensor = slipstream.Tensor.from_dlpack(owner)
    assert sys.getrefcount(owner) == before + 1
    shown = np.from_dlpack(tensor)
    tensor.shape = [2, 500]
    assert np.from_dlpack(tensor).shape == (2, 500)
    del tensor
    assert shown[999] == 1.0
    del shown
    gc.collect()
    assert sys.getrefcount(owner) == before


@pytest.mark.parametrize(
    ("value", "datatype", "shape"),
    [
        ([[True, False]], "BOOL", [1, 2]),
        ([1, 2], "INT64", [2]),
        ([0.5], "FP64", [1]),
        (["a", "bc"], "BYTES", [2]),
        ([b"a"], "BYTES", [1]),
        (np.array(["x"]), "BYTES", [1]),
        (np.array([b"x", "y"], dtype=object), "BYTES", [2]),
        (np.float32(2), "FP32", []),
        (np.zeros((2, 0), np.int8), "INT8", [2, 0]),
        (np.arange(6, dtype=np.int32).reshape(2, 3).T, "INT32", [3, 2]),
    ],
)
def test_lists_and_arrays_are_converted(value: Any, datatype: str, shape: list[int]) -> None:
    tensor = tensor_of(value)
    assert (tensor.data_type.name, list(tensor.shape)) == (datatype, shape)
    if datatype != "BYTES":
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(value))


def test_texts_go_there_and_back() -> None:
    tensor = slipstream.Tensor.from_string_array([["grün", ""], ["c", "dd"]])
    assert tensor.to_string_array().tolist() == [["grün", ""], ["c", "dd"]]
    assert tensor.to_bytes_array().tolist() == [["grün".encode(), b""], [b"c", b"dd"]]
    assert np.asarray(tensor).tolist() == tensor.to_bytes_array().tolist()
    assert slipstream.Tensor.from_bytes_array([b"\xff"]).to_bytes_array().tolist() == [b"\xff"]


@pytest.mark.parametrize("value", [[[1], [2, 3]], {"a": 1}, "text", np.zeros(2, np.complex64), [1j]])
def test_what_is_no_tensor_is_refused(value: Any) -> None:
    with pytest.raises(slipstream.InvalidArgumentError):
        tensor_of(value)


def test_memory_with_gaps_and_texts_by_dlpack_are_refused() -> None:
    with pytest.raises(slipstream.InvalidArgumentError, match="contiguous"):
        slipstream.Tensor.from_dlpack(np.zeros((4, 4))[:, ::2])
    with pytest.raises(slipstream.InvalidArgumentError, match="BYTES"):
        np.from_dlpack(slipstream.Tensor.from_string_array(["a"]))
    with pytest.raises(slipstream.InvalidArgumentError, match=r"not supported|BYTES"):
        slipstream.Tensor.from_bytes_array([1])
    with pytest.raises(slipstream.InvalidArgumentError, match=r"not <DataType\.BYTES"):
        tensor_of([1]).to_string_array()


@pytest.mark.parametrize(
    ("device", "place"),
    [
        ("cpu", (slipstream.MemoryType.CPU, 0)),
        ("gpu:3", (slipstream.MemoryType.GPU, 3)),
        (slipstream.MemoryType.CPU_PINNED, (slipstream.MemoryType.CPU_PINNED, 0)),
        ((slipstream.MemoryType.GPU, 1), (slipstream.MemoryType.GPU, 1)),
        ((slipstream.DLDeviceType.kDLCUDA, 2), (slipstream.MemoryType.GPU, 2)),
    ],
)
def test_a_device_is_named_in_several_ways(device: Any, place: tuple[slipstream.MemoryType, int]) -> None:
    assert device_of(device) == place


@pytest.mark.parametrize("device", ["unsupported", "gpu:x", "gpu:0:1", (1, 2), 5])
def test_what_names_no_device_is_refused(device: Any) -> None:
    with pytest.raises(slipstream.InvalidArgumentError):
        device_of(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_named() -> None:
    tensor = tensor_of([1.0])
    assert tensor.to_device("cpu") is tensor
    with pytest.raises(slipstream.UnsupportedError, match="not supported"):
        tensor.to_device("gpu:0")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_goes_to_a_gpu_and_back() -> None:
    there = tensor_of(np.arange(5, dtype=np.float32)).to_device("gpu")
    assert there.memory_type is slipstream.MemoryType.GPU
    assert torch.utils.dlpack.from_dlpack(there).tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(np.asarray(there), np.arange(5, dtype=np.float32))
