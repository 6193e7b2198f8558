"""Bodies of `generate`: a JSON object whose fields are inputs and parameters, and the same form for the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.router.api.kserve.http.bodies.json_tensors import data_from_json, data_to_json
from slipstream.router.api.kserve.json_fields import as_text, has, members, refuse
from slipstream.router.api.kserve.request_parameters import model_parameter
from slipstream.router.api.kserve.server_facts import shape_with_batch
from slipstream.router.api.kserve.tensor_places import TensorPlaces
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, InferResponse
from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec
from slipstream.router.tensors.tensor import Tensor

NESTED = "parameters"  # a field whose own fields count as those of the body


def fill_from_fields(
    request: InferRequest, fields: object, spec: ModelSpec, places: TensorPlaces, max_bytes: int
) -> None:
    """Makes inputs of the fields that have the name of one, and parameters of the others. Raises InferError."""
    if has(fields, "id"):
        request.id = as_text(members(fields)["id"], "Unable to parse 'id'")
    inputs = {tensor.name: tensor for tensor in spec.inputs}
    for name, value in members(fields).items():
        if name != NESTED:
            _add(request, name, value, inputs, spec, places, max_bytes)
            continue
        if name in inputs:
            raise InferError(f"Keyword '{name}' for nested schema also given as input tensor name")
        if not isinstance(value, dict):
            refuse("attempt to access JSON non-object as object", f"Expected JSON object for keyword: '{name}'")
        for inner, inner_value in value.items():
            _add(request, inner, inner_value, inputs, spec, places, max_bytes)


def _add(
    request: InferRequest,
    name: str,
    value: object,
    inputs: Mapping[str, TensorSpec],
    spec: ModelSpec,
    places: TensorPlaces,
    max_bytes: int,
) -> None:
    tensor = inputs.get(name)
    if tensor is None:
        request.parameters[name] = model_parameter(name, value)
        return
    elements = value if isinstance(value, list) else [value]
    shape = shape_for(name, len(elements), shape_with_batch(tensor, spec))
    data = data_from_json(name, tensor.datatype, shape, elements, max_bytes)
    request.inputs.append(Tensor(name, tensor.datatype, shape, places.put(data)))


def shape_for(name: str, num_elements: int, dims: list[int]) -> tuple[int, ...]:
    """The shape of so many elements: the last dimension that may vary takes all that the fixed ones leave, others that
    may vary are 1. Raises INVALID_ARG if they do not fit."""
    unfit = InferError(f"The schema can not convert input '{name}' to tensor with proper shape")
    left = num_elements
    for dim in dims:
        if dim >= 0:
            if dim == 0 or left % dim:
                raise unfit
            left //= dim
    shape = list(dims)
    for axis in range(len(dims) - 1, -1, -1):
        if dims[axis] < 0:
            shape[axis], left = left, 1
    if left != 1:
        raise unfit
    return tuple(shape)


def fields_of(response: InferResponse) -> tuple[dict[str, Any], bool]:
    """The answer, and whether orjson can write it. A single element stands without a list. Raises InferError."""
    fields: dict[str, Any] = {"model_name": response.model, "model_version": response.model_version}
    if response.id:
        fields["id"] = response.id
    fields.update(response.parameters)
    is_plain = True
    for output in response.outputs:
        values, is_plain_output = data_to_json(output)
        fields[output.name] = values[0] if len(values) == 1 else values
        is_plain = is_plain and is_plain_output
    return dict(sorted(fields.items())), is_plain
