"""Tensors as numpy arrays and back. BYTES are arrays of objects, BF16 is float32 here."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.router.api.kserve.tensor_places import TensorPlaces
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.tensor import Tensor

LENGTH_BYTES = 4  # before each element of BYTES
Array = np.ndarray[Any, np.dtype[Any]]


def array_of(tensor: Tensor) -> Array:
    """A copy: the tensor's memory may be given back afterwards."""
    view = tensor.view
    if tensor.datatype == "BYTES":
        elements = np.empty(tensor.num_elements, dtype=object)
        elements[:] = elements_in(view)
        return elements.reshape(tensor.shape)
    if tensor.datatype == "BF16":
        halves = np.frombuffer(view, np.uint16).astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(tensor.shape)
    return np.frombuffer(view, DATATYPES[tensor.datatype].numpy_name).reshape(tensor.shape).copy()


def elements_in(view: memoryview) -> list[bytes]:
    elements, position = [], 0
    while position < len(view):
        begin = position + LENGTH_BYTES
        position = begin + int.from_bytes(view[begin - LENGTH_BYTES : begin], "little")
        elements.append(bytes(view[begin:position]))
    return elements


def tensor_of(name: str, datatype: str, array: Array, places: TensorPlaces) -> Tensor:
    """The tensor of an array, of objects (`bytes`) for BYTES. Raises InferError if there is no memory for it."""
    return Tensor(name, datatype, array.shape, places.put(data_of(datatype, array)))


def data_of(datatype: str, array: Array) -> bytes:
    if datatype == "BYTES":
        elements = array.ravel().tolist()
        return b"".join([len(one).to_bytes(LENGTH_BYTES, "little") + one for one in elements])
    if datatype == "BF16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        return rounded_halves(bits).tobytes()
    numpy_name = DATATYPES[datatype].numpy_name
    return np.ascontiguousarray(array, numpy_name).tobytes()


def rounded_halves(bits: Array) -> Array:
    """The upper halves of float32's bits, rounded to the nearest, ties to even."""
    halves: Array = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return halves.astype(np.uint16)
