"""Tensors of the API for models: arrays, BYTES, DLPack."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.workers.backends.python.import_path import triton_python_backend_utils as pb_utils
from slipstream.workers.backends.python.model_api.tensors import bytes_elements, dlpack
from slipstream.workers.backends.python.model_api.tensors.errors import TritonModelException
from slipstream.workers.backends.python.model_api.tensors.tensor import Tensor

KINDS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32]


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_bytes_elements_come_back_as_they_were(elements: list[bytes]) -> None:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    encoded = bytes_elements.serialize(array)
    assert bytes_elements.deserialize(encoded) == elements
    assert len(encoded) == sum(4 + len(element) for element in elements)


def test_text_becomes_utf8_and_fixed_bytes_are_bytes() -> None:
    array = np.array(["ä", b"\xff", 3, None], dtype=np.object_)
    assert bytes_elements.deserialize(Tensor("X", array).memory()) == ["ä".encode(), b"\xff", b"3", b"None"]
    fixed = Tensor("X", np.array([[b"a"], [b"bc"]]))
    assert bytes_elements.deserialize(fixed.memory()) == [b"a", b"bc"]
    assert fixed.shape() == [2, 1]


@pytest.mark.parametrize("encoded", [b"\1\0\0", b"\5\0\0\0a"])
def test_incomplete_elements_are_refused(encoded: bytes) -> None:
    with pytest.raises(Exception, match="BYTES tensor"):
        bytes_elements.deserialize(encoded)


def test_an_array_that_is_not_contiguous_is_copied_and_another_is_not() -> None:
    rows = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert Tensor("X", rows).as_numpy() is rows
    turned = Tensor("X", rows.T)
    assert bytes(turned.memory()) == np.ascontiguousarray(rows.T).tobytes()


@pytest.mark.parametrize("array", [np.array([1j]), np.array(["text"]), np.array([1], dtype=">f4")])
def test_arrays_that_no_tensor_can_have_are_refused(array: np.ndarray) -> None:
    with pytest.raises(TritonModelException, match="NumPy dtype is not supported"):
        Tensor("X", array)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_torch_and_tensors_share_memory_by_dlpack(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    source = torch.ones(shape).to(kind)
    tensor = Tensor.from_dlpack("X", source)
    assert tensor.shape() == list(shape)
    np.testing.assert_array_equal(tensor.as_numpy(), source.numpy())
    back = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
    assert back.dtype == kind
    if source.numel():
        back.view(-1)[0] = 0
        assert not source.view(-1)[0]
    assert torch.from_dlpack(tensor).shape == source.shape


def test_bf16_goes_by_dlpack_only() -> None:
    tensor = Tensor.from_dlpack("X", torch.tensor([1.5, 2.0], dtype=torch.bfloat16))
    with pytest.raises(TritonModelException, match="dtype is BF16"):
        tensor.as_numpy()
    assert bytes(tensor.memory()) == np.array([0x3FC0, 0x4000], dtype=np.uint16).tobytes()
    received = Tensor.of_memory("X", "BF16", [2], bytearray(tensor.memory()), 0, 4)
    assert torch.from_dlpack(received).tolist() == [1.5, 2.0]


def test_what_is_lent_lives_as_long_as_its_consumer() -> None:
    array = np.arange(4, dtype=np.float32)
    alive = weakref.ref(array)
    consumer = torch.from_dlpack(Tensor("X", array))
    del array
    gc.collect()
    assert alive() is not None
    del consumer
    gc.collect()
    assert alive() is None
    assert not dlpack.LENT


def test_a_capsule_that_nobody_takes_ends_its_loan() -> None:
    Tensor("X", np.arange(4)).to_dlpack()
    gc.collect()
    assert not dlpack.LENT


def test_a_producer_s_memory_is_given_back_when_the_tensor_ends() -> None:
    ended = []
    lent = Tensor("X", np.arange(4))
    weakref.finalize(lent.as_numpy(), ended.append, "ended")
    array = Tensor.from_dlpack("Y", lent.to_dlpack()).as_numpy()
    del lent
    gc.collect()
    assert (array.tolist(), ended) == ([0, 1, 2, 3], [])
    del array
    gc.collect()
    assert ended == ["ended"]


def test_dlpack_refuses_text_strides_and_other_things() -> None:
    with pytest.raises(TritonModelException, match="does not have support for string"):
        Tensor("X", np.array([b"a"], dtype=np.object_)).to_dlpack()
    with pytest.raises(TritonModelException, match="not contiguous"):
        Tensor.from_dlpack("X", torch.arange(6).reshape(2, 3).T)
    with pytest.raises(TritonModelException, match="__dlpack__"):
        Tensor.from_dlpack("X", 3)
    with pytest.raises(TritonModelException, match="empty string"):
        Tensor.from_dlpack("", torch.arange(3))


def test_types_of_configurations_numpy_and_triton_fit() -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    for name, kind in pb_utils.TRITON_STRING_TO_NUMPY.items():
        number = pb_utils.numpy_to_triton_type(np.bool_ if name == "TYPE_BOOL" else kind)
        assert pb_utils.triton_to_numpy_type(number) in (kind, np.bool_)
