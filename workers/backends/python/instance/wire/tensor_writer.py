"""Tensors and responses of a model, as parts of frames."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from slipstream.workers.backends.python.instance.memory.output_memory import OutputMemory
from slipstream.workers.backends.python.instance.memory.shared_files import SharedFiles
from slipstream.workers.backends.python.instance.wire.frames import ALIGNMENT
from slipstream.workers.backends.python.model_api.infer_response import InferenceResponse
from slipstream.workers.backends.python.model_api.tensors.tensor import Tensor

quote = json.encoder.encode_basestring
PADDING = bytes(ALIGNMENT)


class Payload:
    """The bytes of a frame behind its head. `places` are those of its tensors that lie in this process's shared
    memory."""

    __slots__ = ("num_bytes", "pieces", "places")

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.num_bytes = 0
        self.places: list[tuple[str, int]] = []

    def add(self, data: Any, num_bytes: int) -> int:
        """Appends the bytes of a tensor; where they begin."""
        gap = -self.num_bytes % ALIGNMENT
        if gap:
            self.pieces.append(PADDING[:gap])
            self.num_bytes += gap
        offset = self.num_bytes
        if num_bytes:
            self.pieces.append(data)
            self.num_bytes += num_bytes
        return offset


class TensorWriter:
    """Says of each tensor where its bytes are, and puts them there: into a payload, into shared memory, or where a
    client wants them."""

    def __init__(self, memory: OutputMemory, files: SharedFiles) -> None:
        self._memory = memory
        self._files = files
        self._inline_bytes = 0
        self._shares_memory = False

    def configure(self, inline_bytes: int, shares_memory: bool) -> None:
        self._inline_bytes = inline_bytes
        self._shares_memory = shares_memory

    def response(self, response: InferenceResponse, names: Any, into: dict[str, Any] | None, payload: Payload) -> str:
        """A response, with those of its outputs that were asked for."""
        error = response._error
        if error is not None:
            return f'{{"outputs":[],"error":["{error.code().name}",{quote(error.message())}],"parameters":null}}'
        outputs = ",".join(
            [
                self.tensor(tensor, payload, into.get(tensor._name) if into else None)
                for tensor in response._output_tensors
                if tensor._name in names
            ]
        )
        parameters = response._parameters
        return f'{{"outputs":[{outputs}],"error":null,"parameters":{"null" if parameters == "{}" else parameters}}}'

    def tensor(self, tensor: Tensor, payload: Payload, into: list[Any] | None = None) -> str:
        data = tensor.memory()
        num_bytes = data.nbytes if isinstance(data, np.ndarray) else len(data)
        place = self.place(data, num_bytes, payload, into)
        return f'[{quote(tensor._name)},"{tensor._datatype}",{list(tensor._shape)},{place}]'

    def bytes_place(self, data: bytes, payload: Payload) -> str:
        return self.place(data, len(data), payload, None)

    def discard(self, payload: Payload) -> None:
        """A frame that is not sent."""
        for key, offset in payload.places:
            self._memory.release(key, offset)

    def place(self, data: Any, num_bytes: int, payload: Payload, into: list[Any] | None) -> str:
        """Puts the bytes of a tensor somewhere; the text of the place."""
        if into is not None and num_bytes <= into[2]:
            key, offset, _ = into
            self._files.write(key, offset, num_bytes, data)
            return f"[{quote(key)},{offset},{num_bytes}]"
        if num_bytes > self._inline_bytes and self._shares_memory:
            place = self._memory.put(data, num_bytes)
            if place is not None:
                payload.places.append(place)
                return f'["{place[0]}",{place[1]},{num_bytes}]'
        return f"[{payload.add(data, num_bytes)},{num_bytes}]"
