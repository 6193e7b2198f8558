"""Arrays of numpy as tensors of PyTorch, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from slipstream.workers.backends.backend import BackendError
from slipstream.workers.backends.pytorch.torch_program import Value

Array = np.ndarray[Any, Any]
DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}


def datatype_of(dtype: torch.dtype) -> str:
    """KServe's name; of a type that it does not have: PyTorch's."""
    return DATATYPES.get(dtype, str(dtype))


def tensor_of(array: Array, *, is_bfloat16: bool, is_copied: bool) -> torch.Tensor:
    """`is_copied`: the tensor may be written to, else the array must not be."""
    if is_copied:
        array = array.copy()
    elif not array.flags.writeable:
        array = array.view()
        try:
            array.flags.writeable = True  # PyTorch has no tensors that are read only, and would warn
        except ValueError:
            array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor


def texts_of(array: Array) -> list[str]:
    return [element.decode() for element in array.ravel().tolist()]


def array_of(name: str, value: Value, datatype: str) -> Array:
    """An output. `datatype` is KServe's name of what it is to be. Raises BackendError."""
    if isinstance(value, torch.Tensor):
        return numbers_of(name, value, datatype)
    if isinstance(value, list) and all(isinstance(one, str) for one in value) and datatype == "BYTES":
        return np.array([one.encode() for one in value], dtype=np.object_)
    raise BackendError(f"output '{name}' must be of type Tensor or List[str].", "INVALID_ARG")


def numbers_of(name: str, tensor: torch.Tensor, datatype: str) -> Array:
    """Raises BackendError."""
    computed = datatype_of(tensor.dtype)
    if computed != datatype:
        text = f"configuration expects datatype TYPE_{datatype} for output '{name}', model provides TYPE_{computed}"
        raise BackendError(text, "INVALID_ARG")
    if not tensor.ndim:
        raise BackendError(f"output '{name}' is a scalar which is not supported.", "INVALID_ARG")
    tensor = tensor.detach().cpu().contiguous()
    if datatype == "BF16":
        tensor = tensor.view(torch.uint16)
    array: Array = tensor.numpy()
    return array
