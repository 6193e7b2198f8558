"""Which requests may share a batch: those whose inputs can be put one after the other."""

from __future__ import annotations

from collections.abc import Hashable

from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.model_spec import ModelSpec


class BatchKeys:
    """Requests share a batch if their inputs of variable size have equal shapes, apart from the rows, unless the model
    takes ragged batches; and if they have the same inputs, where some are optional."""

    def __init__(self, spec: ModelSpec) -> None:
        self._names = tuple(each.name for each in spec.inputs if -1 in each.dims and not each.is_ragged)
        self._has_optional = any(each.is_optional for each in spec.inputs)
        self._first_dim = 1 if spec.max_batch_size else 0  # the batch dimension stands before it

    @property
    def are_needed(self) -> bool:
        """Whether requests can differ at all."""
        return bool(self._names) or self._has_optional

    def of(self, request: InferRequest) -> Hashable:
        first = self._first_dim
        if len(self._names) == 1 and not self._has_optional:
            name = self._names[0]
            return next((tensor.shape[first:] for tensor in request.inputs if tensor.name == name), None)
        shapes = {tensor.name: tensor.shape[first:] for tensor in request.inputs}
        compared = tuple(shapes.get(name) for name in self._names)
        return (compared, frozenset(shapes)) if self._has_optional else compared


def batch_keys_of(spec: ModelSpec) -> BatchKeys | None:
    """None: all requests of the model may share a batch."""
    keys = BatchKeys(spec)
    return keys if keys.are_needed else None
