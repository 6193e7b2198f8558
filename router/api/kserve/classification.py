"""The classification extension: the best k values of an output, with their index and label."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from slipstream.router.api.kserve.tensor_values import FLOATS, numbers_in
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.tensor import Tensor


def classified(output: Tensor, k: int, labels: Sequence[str], *, has_batch: bool) -> Tensor:
    """A BYTES tensor `[k]`, or `[batch, k]`, of `value:index[:label]`, the largest value first. Raises INVALID_ARG for
    a datatype without an order, INTERNAL if the bytes do not fit the shape."""
    check_size(output)
    values = numbers_in(output.view, output.datatype)
    if values is None:
        raise InferError(f"class result not available for output due to unsupported type '{output.datatype}'")
    value_format = "%f" if output.datatype in FLOATS else "%d"
    is_batch = has_batch and bool(output.shape)
    rows = output.shape[0] if is_batch else 1
    row_size = prod(output.shape[1:] if is_batch else output.shape)
    texts = bytearray()
    for row in range(rows):
        row_values = values[row * row_size : (row + 1) * row_size].tolist()
        best = sorted(range(row_size), key=row_values.__getitem__, reverse=True)[:k]
        for index in best:
            text = f"{value_format % row_values[index]}:{index}"
            if index < len(labels) and labels[index]:
                text += f":{labels[index]}"
            encoded = text.encode()
            texts += len(encoded).to_bytes(4, "little") + encoded
    num_classes = min(k, row_size)
    shape = (rows, num_classes) if is_batch else (num_classes,)
    return Tensor(output.name, "BYTES", shape, bytes(texts))


def check_size(output: Tensor) -> None:
    kind = DATATYPES.get(output.datatype)
    if kind is None or kind.element_bytes is None:
        return  # BYTES, which have no order
    is_shape = all(dim >= 0 for dim in output.shape)
    if not is_shape or output.num_bytes != output.num_elements * kind.element_bytes:
        text = f"class result not available for output '{output.name}': its shape does not match its size"
        raise InferError(text, InferErrorCode.INTERNAL)
