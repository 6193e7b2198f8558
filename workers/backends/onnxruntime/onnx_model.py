"""A loaded ONNX model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from slipstream.workers.backends.backend import Arrays, BackendError, ModelContext
from slipstream.workers.backends.onnxruntime.onnx_file import OnnxFile

BF16_TYPE = 16  # onnx.TensorProto.BFLOAT16
SHRINKAGE = "memory.enable_memory_arena_shrinkage"


class OnnxModel:
    """LoadedModel. Inputs are not copied; outputs are ONNX Runtime's own memory."""

    def __init__(self, session: onnxruntime.InferenceSession, file: OnnxFile, model: ModelContext) -> None:
        self._session = session
        self._options = onnxruntime.RunOptions()
        if SHRINKAGE in model.parameters:
            self._options.add_run_config_entry(SHRINKAGE, model.parameters[SHRINKAGE])
        known = {**file.inputs, **file.overridable}
        self._scalars = {name for name, tensor in known.items() if tensor.shape == ()}
        self._texts = {name for name, tensor in known.items() if tensor.datatype == "TYPE_STRING"}
        self._bfloats = {name for name, tensor in known.items() if tensor.datatype == "TYPE_BF16"}
        self._has_bfloats = any(tensor.datatype == "TYPE_BF16" for tensor in (*known.values(), *file.outputs.values()))
        self._is_plain = not (self._scalars or self._texts or self._has_bfloats)
        self._scalar_outputs = {
            output["name"]: [int(size) for size in output["dims"]]
            for output in model.config.get("output", [])
            if file.outputs[output["name"]].shape == () and not model.max_batch_size
        }

    def execute(self, inputs: Arrays, wanted: Sequence[str]) -> Arrays:
        given: Any = inputs if self._is_plain else {name: self._given(name, array) for name, array in inputs.items()}
        try:
            if self._has_bfloats:
                values = self._session.run_with_ort_values(list(wanted), given, self._options)
                outputs = [array_of(value) for value in values]
            else:
                outputs = self._session.run(list(wanted), given, self._options)
        except Exception as error:  # of a dozen classes of ONNX Runtime, whose common one is Exception
            raise BackendError(f"onnx runtime error: {error}", "INTERNAL") from error
        arrays = dict(zip(wanted, outputs, strict=True))
        for name, dims in self._scalar_outputs.items():
            if name in arrays:
                arrays[name] = np.reshape(arrays[name], dims)
        return arrays

    def close(self) -> None:
        del self._session

    def _given(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        if name in self._scalars:
            array = array.reshape(())
        if name in self._texts:
            array = texts_of(name, array)
        if not self._has_bfloats:
            return array
        if name in self._bfloats:
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, BF16_TYPE)
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def texts_of(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The text of BYTES. Raises BackendError for what is no text."""
    try:
        texts = [element.decode() for element in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        reason = f"input '{name}' must be text in UTF-8, which is all that ONNX Runtime takes: {error}"
        raise BackendError(reason, "INVALID_ARG") from None
    return np.array(texts, dtype=np.object_).reshape(array.shape)


def array_of(value: onnxruntime.OrtValue) -> np.ndarray[Any, Any]:
    if value.element_type() != BF16_TYPE:
        array: np.ndarray[Any, Any] = value.numpy()
        return array
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(data, np.uint16).reshape(value.shape())
