"""How rows, one for each text, image or piece of audio, lie in the tensors of a model."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.router.api.tensors.models.endpoint_errors import misconfigured
from slipstream.router.api.tensors.models.tensor_arrays import Array
from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec

MOST_ROWS = 64  # in one call of a model that says nothing about it


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Of one model: rows are along the first axis if the model batches, or if its tensors have one axis more than a
    row, of any size. Otherwise there is one row in each call."""

    endpoint: str
    spec: ModelSpec

    def num_rows(self, tensor: TensorSpec, row_axes: int) -> int:
        """How many rows go into one call, by the input `tensor`, of which a row has so many axes."""
        if self.spec.max_batch_size:
            return self.spec.max_batch_size
        if len(tensor.dims) <= row_axes:
            return 1
        return tensor.dims[0] if tensor.dims[0] > 0 else MOST_ROWS

    def placed(self, tensor: TensorSpec, rows: Array) -> Array:
        """`rows`, whose first axis is that of the rows, in the shape of the input."""
        num_axes = len(tensor.dims) + (1 if self.spec.max_batch_size else 0)
        missing = num_axes - rows.ndim
        if missing == -1 and rows.shape[0] == 1:
            row: Array = rows[0]
            return row
        if missing < 0:
            raise misconfigured(self.endpoint, f"input {tensor.name!r} has {num_axes} axes, a row needs {rows.ndim}")
        return rows.reshape(rows.shape[:1] + (1,) * missing + rows.shape[1:])

    def rows_of(self, output: str, array: Array, num_rows: int) -> Array:
        """An output with the axis of the rows first, and no others of size 1 but the last."""
        if not self.spec.max_batch_size and num_rows == 1 and (array.ndim < 2 or array.shape[0] != 1):
            array = array[None]
        if not array.ndim or array.shape[0] != num_rows:
            shape = list(array.shape)
            raise misconfigured(self.endpoint, f"output {output!r} has the shape {shape} for {num_rows} rows")
        kept = [size for size in array.shape[1:-1] if size != 1]
        return array.reshape(array.shape[:1] + tuple(kept) + array.shape[1:][-1:])
