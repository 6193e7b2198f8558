"""Raw requests: the body is the only input of the model, and its shape follows from the length."""

from __future__ import annotations

from math import prod

from slipstream.router.api.kserve.tensor_places import TensorPlaces
from slipstream.router.tensor_memory.region_pool import RegionLease
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.model_spec import ModelSpec
from slipstream.router.tensors.tensor import Tensor

RAW_INPUT = "raw_input"  # what Triton calls the input in errors
NO_ID = "[request id: <id_unknown>]"  # which a raw request cannot have


def raw_input(spec: ModelSpec, view: memoryview, places: TensorPlaces, lease: RegionLease | None) -> Tensor:
    """The body as the only input of a model, whose shape follows from its length. Raises INVALID_ARG."""
    if len(spec.inputs) != 1:
        raise InferError(
            f"{NO_ID} Raw request must only have 1 input (found 1) to be deduced but got {len(spec.inputs)} inputs"
            f" in '{spec.name}' model configuration"
        )
    tensor = spec.inputs[0]
    batch = (1,) if spec.max_batch_size else ()
    if tensor.datatype == "BYTES":
        if tensor.dims != (1,):
            raise InferError(
                f"{NO_ID} For BYTE datatype raw input '{tensor.name}', the model must have input shape [1]"
            )
        data = places.put(len(view).to_bytes(4, "little") + view)
        return Tensor(tensor.name, "BYTES", (*batch, 1), data)
    shape = shape_of_raw(spec, len(view))
    if lease is not None:
        places.keep(lease)
        return Tensor(tensor.name, tensor.datatype, (*batch, *shape), lease.slice_of(0, len(view)))
    return Tensor(tensor.name, tensor.datatype, (*batch, *shape), places.put(view))


def shape_of_raw(spec: ModelSpec, num_bytes: int) -> tuple[int, ...]:
    """The dimensions of the only input, of which one may vary. Raises INVALID_ARG."""
    tensor = spec.inputs[0]
    num_wildcards = sum([dim < 0 for dim in tensor.dims])
    if num_wildcards > 1:
        raise InferError(
            f"{NO_ID} The shape of the raw input '{tensor.name}' can not be deduced because there are more than one"
            " variable-sized dimension"
        )
    element_bytes = DATATYPES[tensor.datatype].element_bytes or 1
    fixed_bytes = element_bytes * prod([dim for dim in tensor.dims if dim >= 0])
    wildcard = num_bytes // fixed_bytes if fixed_bytes else 0
    shape = tuple([wildcard if dim < 0 else dim for dim in tensor.dims])
    expected = fixed_bytes * (wildcard if num_wildcards else 1)
    if expected != num_bytes:
        text = f"input byte size mismatch for input '{RAW_INPUT}' for model '{spec.name}'"
        raise InferError(f"{NO_ID} {text}. Expected {expected}, got {num_bytes}")
    return shape
