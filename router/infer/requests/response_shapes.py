"""The outputs of a model with the shapes that its configuration promises to clients (`reshape`)."""

from __future__ import annotations

from slipstream.router.infer.requests.request_check import filled
from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec
from slipstream.router.tensors.tensor import Tensor


class ResponseShapes:
    def __init__(self, spec: ModelSpec) -> None:
        self._reshaped = {tensor.name: tensor for tensor in spec.outputs if tensor.reshape is not None}
        self._num_batch_dims = 1 if spec.max_batch_size else 0

    def of(self, outputs: list[Tensor]) -> list[Tensor]:
        if not self._reshaped:
            return outputs
        return [self._restored(tensor, self._reshaped.get(tensor.name)) for tensor in outputs]

    def _restored(self, tensor: Tensor, spec: TensorSpec | None) -> Tensor:
        if spec is None or spec.reshape is None:
            return tensor
        batch, row = tensor.shape[: self._num_batch_dims], tensor.shape[self._num_batch_dims :]
        if len(row) != len(spec.reshape):
            return tensor  # not what the model promised; its client sees what it is
        shape = batch + filled(spec.dims, of=spec.reshape, values=row)
        return Tensor(tensor.name, tensor.datatype, shape, tensor.data)
