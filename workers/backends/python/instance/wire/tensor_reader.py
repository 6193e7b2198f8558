"""Tensors of frames, as tensors of the API for models. None is copied."""

from __future__ import annotations

from typing import Any, Callable

from slipstream.workers.backends.python.instance.memory.input_memory import Mapping, OpenFiles, held_memory
from slipstream.workers.backends.python.model_api.tensors.tensor import Tensor


def read_tensors(described: list[Any], payload: bytearray, files: OpenFiles, mappings: list[Mapping]) -> list[Tensor]:
    """`mappings` gets those of the tensors that lie in shared memory. Raises OSError or ValueError."""
    of_memory = Tensor.of_memory
    tensors = []
    for name, datatype, shape, place in described:
        if len(place) == 2:
            tensors.append(of_memory(name, datatype, shape, payload, place[0], place[1]))
            continue
        key, offset, num_bytes = place
        if not num_bytes:
            tensors.append(of_memory(name, datatype, shape, bytearray(), 0, 0))
            continue
        mapping, begin = files.map_privately(key, offset, num_bytes)
        mappings.append(mapping)
        tensors.append(of_memory(name, datatype, shape, held_memory(mapping), begin, num_bytes))
    return tensors


def read_borrowed_tensors(
    described: list[Any], payload: bytearray, files: OpenFiles, release: Callable[[str, int], None]
) -> list[Tensor]:
    """Those of a response to a call: `release` is called with each place in shared memory when nothing uses it."""
    tensors = []
    for one in described:
        mappings: list[Mapping] = []
        tensors += read_tensors([one], payload, files, mappings)
        place = one[3]
        if len(place) == 3:
            if mappings:
                mappings[0].release = lambda key=place[0], offset=place[1]: release(key, offset)
            else:
                release(place[0], place[1])
    return tensors
