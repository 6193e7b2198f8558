"""The extra inputs of a model with sequences: control inputs, implicit state, and the inputs of an empty place.

Source: `SetControlTensors`, `CreateBooleanControlTensors` and `SequenceStates` of Triton's sequence batcher.
"""

from __future__ import annotations

import hashlib
import math
import struct

from slipstream.router.batching.scheduler import QueuedRequest
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.infer_request import SequenceFlags
from slipstream.router.tensors.model_spec import ImplicitStateSpec, ModelSpec, SequenceBatching, SequenceControl
from slipstream.router.tensors.tensor import Tensor

FORMATS = {"INT32": "<i", "FP32": "<f", "BOOL": "<?"}
ORDER = ("START", "END", "READY")  # in which they are added; CORRID is the last one


class ZeroTensors:
    """Makes tensors of zeros that share their memory. Texts are empty."""

    def __init__(self) -> None:
        self._zeros = memoryview(b"")

    def of(self, name: str, datatype: str, shape: tuple[int, ...]) -> Tensor:
        element_bytes = DATATYPES[datatype].element_bytes or 4  # an empty text is its length, 0
        num_bytes = element_bytes * math.prod(shape)
        if num_bytes > len(self._zeros):
            self._zeros = memoryview(bytes(num_bytes))
        return Tensor(name, datatype, shape, self._zeros[:num_bytes])


def correlation_bytes(correlation_id: int | str, datatype: str) -> bytes:
    """A numeric input gets the low bytes of the id; of a text, those of a hash, as a text does not fit."""
    if datatype == "BYTES":
        text = str(correlation_id).encode() if correlation_id else b""
        return struct.pack("<I", len(text)) + text
    if isinstance(correlation_id, str):
        number = hashlib.blake2b(correlation_id.encode(), digest_size=8).digest()
    else:
        number = (correlation_id % 2**64).to_bytes(8, "little")
    return number[: DATATYPES[datatype].element_bytes]


class ControlInputs:
    """Of one model. The four tuples of START, END and READY are made once. `has_varying_states`: the shape of a state
    may be another after each request."""

    def __init__(self, spec: ModelSpec) -> None:
        batching = spec.sequence_batching or SequenceBatching()
        self._zeros = ZeroTensors()
        self._batch_dims = (1,) if spec.max_batch_size else ()
        by_kind = {control.kind: control for control in batching.controls}
        self._correlation = by_kind.get("CORRID")
        flags = [by_kind[kind] for kind in ORDER if kind in by_kind]
        self._flags = {
            (is_start, is_end): self._flag_tensors(flags, {"START": is_start, "END": is_end, "READY": True})
            for is_start in (False, True)
            for is_end in (False, True)
        }
        not_ready = self._flag_tensors(flags, {"START": False, "END": False, "READY": False})
        self._of_empty_place = not_ready + self._correlation_tensors(0)
        self._states = batching.states
        self.has_varying_states = any(-1 in state.dims for state in batching.states)
        self._input_names = {state.output_name: state.input_name for state in batching.states}

    def of(self, flags: SequenceFlags) -> tuple[Tensor, ...]:
        return self._flags[flags.is_start, flags.is_end] + self._correlation_tensors(flags.correlation_id)

    def initial_states(self) -> dict[str, Tensor]:
        """By the name of the input. A size that varies is 1."""
        return {state.input_name: self._initial_state(state) for state in self._states}

    def state_of_output(self, output: Tensor) -> Tensor | None:
        """The input of the next request that an output of this one is; None if it is no state. Copies the bytes."""
        name = self._input_names.get(output.name)
        return Tensor(name, output.datatype, output.shape, bytes(output.view)) if name is not None else None

    def of_empty_place(self, example: QueuedRequest, states: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """All inputs of a place without a request, with the shapes of a request in the same batch, and `states` of
        that one's sequence."""
        shaped = [*example.request.inputs, *states.values()]
        zeros = tuple([self._zeros.of(each.name, each.datatype, each.shape) for each in shaped])
        return zeros + self._of_empty_place

    def _flag_tensors(self, controls: list[SequenceControl], values: dict[str, bool]) -> tuple[Tensor, ...]:
        return tuple([self._flag_tensor(control, is_true=values[control.kind]) for control in controls])

    def _flag_tensor(self, control: SequenceControl, *, is_true: bool) -> Tensor:
        value = control.false_true[is_true]
        number = value if control.datatype == "FP32" else int(value)
        data = struct.pack(FORMATS[control.datatype], number)
        return Tensor(control.name, control.datatype, (*self._batch_dims, 1), data)

    def _correlation_tensors(self, correlation_id: int | str) -> tuple[Tensor, ...]:
        control = self._correlation
        if control is None:
            return ()
        data = correlation_bytes(correlation_id, control.datatype)
        return (Tensor(control.name, control.datatype, (*self._batch_dims, 1), data),)

    def _initial_state(self, state: ImplicitStateSpec) -> Tensor:
        initial = state.initial
        dims = initial.dims if initial is not None else tuple([1 if dim < 0 else dim for dim in state.dims])
        zeros = self._zeros.of(state.input_name, state.datatype, (*self._batch_dims, *dims))
        if initial is None or initial.data is None:
            return zeros
        return Tensor(zeros.name, zeros.datatype, zeros.shape, initial.data)
