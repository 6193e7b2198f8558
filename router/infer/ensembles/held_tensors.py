"""Tensors that several steps read: their memory goes back to its owner when the last one has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slipstream.router.model_repository.graph_checks import are_compatible
from slipstream.router.tensors.infer_request import ParameterValue, SequenceFlags
from slipstream.router.tensors.tensor import Tensor


class SharedLease:
    """Counts who needs some memory. It begins with its maker, and calls `release` when all have dropped it."""

    __slots__ = ("_num_holders", "_release")

    def __init__(self, release: Callable[[], None] | None) -> None:
        self._release = release
        self._num_holders = 1

    def hold(self) -> None:
        assert self._num_holders > 0, "it was given back"
        self._num_holders += 1

    def drop(self) -> None:
        self._num_holders -= 1
        if self._num_holders == 0 and self._release is not None:
            self._release()


@dataclass(slots=True)
class HeldTensor:
    """A tensor of an ensemble while a run may read it, `num_reads` times more. `tensor` None: it was left out, an
    optional input or an output that its model did not give. `batch_size` is that of the request that it came with or
    from; 0: it has no batch dimension. `sequence` is what the step that made it said of the sequence, `parameters` are
    those of its response."""

    tensor: Tensor | None
    lease: SharedLease
    num_reads: int
    batch_size: int = 0
    sequence: SequenceFlags | None = None
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)

    def fitted(self, name: str, dims: tuple[int, ...], *, batches: bool) -> Tensor | None:
        """As the input or output `name` of a model with these dims. A batch dimension of 1 comes or goes where only one
        side has it."""
        tensor = self.tensor
        if tensor is None:
            return None
        shape = tensor.shape
        if batches != (self.batch_size > 0):
            fits = are_compatible(dims, shape)
            if batches and fits:
                shape = (1, *shape)
            elif not batches and not fits and self.batch_size == 1:
                shape = shape[1:]
        elif tensor.name == name:
            return tensor
        return Tensor(name, tensor.datatype, shape, tensor.data)


def sequence_parameters(sequence: SequenceFlags) -> dict[str, ParameterValue]:
    """What each response of an ensemble says, as Triton's do."""
    return {
        "sequence_id": sequence.correlation_id,
        "sequence_start": sequence.is_start,
        "sequence_end": sequence.is_end,
    }


def sequence_said(parameters: Mapping[str, ParameterValue], before: SequenceFlags) -> SequenceFlags:
    """The sequence after a step with these parameters in its response: a model may name another one."""
    if parameters.keys().isdisjoint(("sequence_id", "sequence_start", "sequence_end")):
        return before
    named = parameters.get("sequence_id", before.correlation_id)
    return SequenceFlags(
        named if isinstance(named, int | str) else before.correlation_id,
        parameters.get("sequence_start", False) is True,
        parameters.get("sequence_end", False) is True,
    )
