"""Tensors of frames, as tensors of the API for models."""

from __future__ import annotations

from typing import Any

from slipstream.workers.backends.python.instance.memory.input_memory import InputMemory
from slipstream.workers.backends.python.model_api.tensors.tensor import Tensor


def read_tensors(described: list[Any], payload: bytearray, memory: InputMemory) -> list[Tensor]:
    """The tensors may be written to, and kept. Those in the payload are not copied; those in shared memory are. Raises
    OSError or ValueError."""
    of_memory = Tensor.of_memory
    tensors = []
    for name, datatype, shape, place in described:
        if len(place) == 2:
            tensors.append(of_memory(name, datatype, shape, payload, place[0], place[1]))
        else:
            num_bytes = place[2]
            data = memory.copy_of(*place) if num_bytes else bytearray()
            tensors.append(of_memory(name, datatype, shape, data, 0, num_bytes))
    return tensors
