"""A model that OpenVINO has compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino

from slipstream.workers.backends.backend import Arrays, BackendError, ModelContext
from slipstream.workers.backends.openvino.device_settings import pads_batches, skips_dynamic_batches
from slipstream.workers.backends.openvino.openvino_file import OpenvinoFile

Array = np.ndarray[Any, Any]


class OpenvinoModel:
    """LoadedModel. Inputs are not copied; outputs are OpenVINO's own memory, which the next execution overwrites."""

    def __init__(self, model: ModelContext, file: OpenvinoFile, compiled: openvino.CompiledModel) -> None:
        self._file = file
        self._request = compiled.create_infer_request()
        self._scalars = {name for name, tensor in file.inputs.items() if tensor.shape == ()}
        self._bfloats = {
            name for name, tensor in {**file.inputs, **file.outputs}.items() if tensor.datatype == "TYPE_BF16"
        }
        self._dims = {output["name"]: [int(size) for size in output["dims"]] for output in model.config["output"]}
        is_fixed = model.max_batch_size > 0 and skips_dynamic_batches(model)
        self._fixed_rows = fixed_rows(file) if is_fixed else 0
        self._pads = pads_batches(model)

    def execute(self, inputs: Arrays, wanted: Sequence[str]) -> Arrays:
        places, num_rows = self._file.input_places, 0
        given = {}
        for name, array in inputs.items():
            if self._fixed_rows:
                num_rows = len(array)
                array = self._filled_up(name, array)
            given[places[name]] = self._given(name, array)
        try:
            results = self._request.infer(given, share_inputs=True, share_outputs=True)
        except RuntimeError as error:
            raise BackendError(f"openvino error: {error}", "INTERNAL") from error
        outputs = {name: self._output(name, results[self._file.output_places[name]]) for name in wanted}
        return {name: array[:num_rows] for name, array in outputs.items()} if self._fixed_rows else outputs

    def close(self) -> None:
        del self._request

    def _given(self, name: str, array: Array) -> Any:
        if name in self._scalars:
            array = array.reshape(())
        if name in self._bfloats:
            return openvino.Tensor(array, openvino.Shape(array.shape), openvino.Type.bf16)
        return array

    def _output(self, name: str, array: Array) -> Array:
        if name in self._bfloats:
            array = array.view(np.uint16)
        return array if array.ndim else array.reshape(self._dims[name])

    def _filled_up(self, name: str, array: Array) -> Array:
        """Raises BackendError for a batch that the model cannot have."""
        missing = self._fixed_rows - len(array)
        if not missing:
            return array
        if missing < 0 or not self._pads:
            remedy = "" if missing < 0 else "; ENABLE_BATCH_PADDING fills smaller ones up"
            text = f"input '{name}': the model takes batches of {self._fixed_rows}, got {len(array)}{remedy}"
            raise BackendError(text, "INVALID_ARG")
        return np.concatenate((array, np.zeros((missing, *array.shape[1:]), array.dtype)))


def fixed_rows(file: OpenvinoFile) -> int:
    """Of a batch; 0: they may vary."""
    return max((tensor.shape[0] for tensor in file.inputs.values() if tensor.shape), default=0)
