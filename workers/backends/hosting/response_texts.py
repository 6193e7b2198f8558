"""The outputs of a batch, as the responses to its requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.workers.backends.backend import BackendError
from slipstream.workers.backends.hosting.array_batches import BF16
from slipstream.workers.backends.python.instance.wire.tensor_writer import Payload, TensorWriter, quote
from slipstream.workers.backends.python.model_api.tensors import bytes_elements
from slipstream.workers.backends.python.model_api.tensors.datatypes import DTYPES

Array = np.ndarray[Any, Any]


class OutputHead:
    """Of one output: `dtype` is that of its array, None for BYTES; `head` begins its text in a message."""

    __slots__ = ("datatype", "dtype", "head", "name")

    def __init__(self, name: str, datatype: str) -> None:
        self.name = name
        self.datatype = datatype
        self.dtype = None if datatype == "BYTES" else DTYPES.get(datatype, BF16)
        self.head = f'[{quote(name)},"{datatype}",'


class ResponseTexts:
    """`outputs` are those of the configuration, with their datatypes."""

    def __init__(self, outputs: Mapping[str, str], writer: TensorWriter) -> None:
        self._writer = writer
        self._formats = [OutputHead(name, datatype) for name, datatype in outputs.items()]
        self._all = tuple(outputs)

    def wanted(self, requests: list[dict[str, Any]]) -> tuple[str, ...]:
        """The outputs that at least one of the requests asks for."""
        names: set[str] = set()
        for request in requests:
            outputs = request["outputs"]
            if outputs is None:
                return self._all
            names.update(outputs)
        return tuple(name for name in self._all if name in names)

    def checked(self, outputs: Mapping[str, Array], wanted: tuple[str, ...], num_rows: int | None) -> dict[str, Array]:
        """The wanted arrays, as they can be sent. `num_rows` None: the model has no batches. Raises BackendError."""
        arrays = {}
        for output in self._formats:
            if output.name not in wanted:
                continue
            array = outputs.get(output.name)
            if array is None:
                raise BackendError(f"output '{output.name}' is not among those that the model has computed")
            if output.dtype is not array.dtype and output.dtype is not None and output.dtype != array.dtype:
                text = f"unexpected datatype {array.dtype} of output '{output.name}', expecting {output.datatype}"
                raise BackendError(text, "INVALID_ARG")
            if num_rows is not None and (not array.ndim or array.shape[0] != num_rows):
                raise BackendError(
                    f"output '{output.name}' has shape {list(array.shape)}: its first dimension must be that of the "
                    f"batch, {num_rows}"
                )
            arrays[output.name] = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        return arrays

    def discard(self, payload: Payload) -> None:
        """Responses that are not sent."""
        self._writer.discard(payload)

    def text(self, request: dict[str, Any], arrays: Mapping[str, Array], rows: slice | None, payload: Payload) -> str:
        """The response to one request. `rows` are its own; None: the arrays are."""
        names, into = request["outputs"], request.get("into")
        texts = []
        for output in self._formats:
            name = output.name
            if names is not None and name not in names:
                continue
            array = arrays[name]
            if rows is not None:
                array = array[rows]
            data: Any = array
            num_bytes = array.nbytes
            if output.dtype is None:
                data = bytes_elements.serialize(array)
                num_bytes = len(data)
            place = self._writer.place(data, num_bytes, payload, into.get(name) if into else None)
            texts.append(f"{output.head}{list(array.shape)},{place}]")
        return f'{{"outputs":[{",".join(texts)}],"error":null,"parameters":null}}'
