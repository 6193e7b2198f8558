"""The module that models import: the classes of the API, and functions for requests, responses and configurations."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.workers.backends.python.model_api.infer_request import InferenceRequest
from slipstream.workers.backends.python.model_api.infer_response import InferenceResponse
from slipstream.workers.backends.python.model_api.logger import Logger
from slipstream.workers.backends.python.model_api.metrics import MetricFamily
from slipstream.workers.backends.python.model_api.model_config import ModelConfig
from slipstream.workers.backends.python.model_api.model_control import (
    get_model_dir,
    is_model_ready,
    load_model,
    unload_model,
)
from slipstream.workers.backends.python.model_api.preferences import MemoryType, PreferredMemory
from slipstream.workers.backends.python.model_api.tensors import bytes_elements
from slipstream.workers.backends.python.model_api.tensors.datatypes import NUMBERS, NUMPY_TYPES
from slipstream.workers.backends.python.model_api.tensors.errors import TritonError, TritonModelException
from slipstream.workers.backends.python.model_api.tensors.tensor import Tensor

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

TRITON_STRING_TO_NUMPY = {
    "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}": bool if name == "BOOL" else kind
    for name, kind in NUMPY_TYPES.items()
}
NUMPY_TYPES_OF_NUMBERS = {NUMBERS[name]: kind for name, kind in NUMPY_TYPES.items()}


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | tuple[()] | None:
    """The elements of an array of objects or bytes, each with its length before it; () for an empty array, and None for
    one with other elements."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype == np.object_ or input_tensor.dtype.type == np.bytes_:
        return bytes_elements.serialize(input_tensor)
    return None


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray[Any, Any]:
    """A flat array of the `bytes` objects of a serialised tensor."""
    elements = bytes_elements.deserialize(encoded_tensor)
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """An input's part of the configuration."""
    return find_by_name(model_config.get("input", []), name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """An output's part of the configuration."""
    return find_by_name(model_config.get("output", []), name)


def find_by_name(parts: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((part for part in parts if part["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_to_numpy_type(data_type: int) -> Any:
    """numpy's type for a number of `TRITONSERVER_DataType`; None if it has none."""
    return NUMPY_TYPES_OF_NUMBERS.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of `TRITONSERVER_DataType` for a type of numpy; None if there is none."""
    for name, kind in NUMPY_TYPES.items():
        if data_type == kind:
            return NUMBERS[name]
    return NUMBERS["BYTES"] if data_type == np.bytes_ else None


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """numpy's type for a type of the configuration, such as TYPE_FP32. Raises KeyError."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]
