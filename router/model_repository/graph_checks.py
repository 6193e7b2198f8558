"""What is refused of an ensemble when it is loaded: its steps must fit together, and into the models that are served.
The texts and their order are Triton's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.model_spec import EnsembleStep, ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """What is known of a tensor of an ensemble, and from which model."""

    model: str
    datatype: str
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]  # with the batch dimension

    @classmethod
    def of(cls, model: ModelSpec, tensor: TensorSpec, dims: tuple[int, ...]) -> GraphTensor:
        full_dims = (-1, *dims) if model.max_batch_size else dims
        return cls(model.name, DATATYPES[tensor.datatype].config_name, dims, full_dims)


def checked_graph(spec: ModelSpec, models: Sequence[ModelSpec]) -> bool:
    """Checks an ensemble against the models of its steps. Returns whether it is decoupled. Raises LoadError."""
    name = spec.name
    tensors = {
        tensor.name: GraphTensor.of(spec, tensor, tensor.reshape or tensor.dims)
        for tensor in (*spec.outputs, *spec.inputs)
    }
    for step, model in zip(spec.steps, models, strict=True):
        if 0 < model.max_batch_size < spec.max_batch_size:
            raise LoadError(
                f"ensemble {name} allows maximum batch size {spec.max_batch_size}, but it contains model {step.model} "
                f"which only allows maximum batch size to be {model.max_batch_size}"
            )
        _check_inputs(name, step, model, tensors)
        _check_outputs(name, step, model, tensors)
    return _is_decoupled(spec, models, tensors)


def _check_inputs(name: str, step: EnsembleStep, model: ModelSpec, tensors: dict[str, GraphTensor]) -> None:
    known = {tensor.name for tensor in model.inputs}
    for input_name, tensor_name in step.inputs.items():
        if input_name not in known:
            what = f"ensemble tensor {tensor_name} is mapping to non-existing input {input_name} in model {step.model}"
            raise LoadError(f"in ensemble {name}, {what}")
    for tensor in model.inputs:
        if tensor.name in step.inputs:
            _add(name, step.inputs[tensor.name], GraphTensor.of(model, tensor, tensor.dims), tensors)
        elif not tensor.is_optional:
            what = f"input {tensor.name} in model {step.model} is not mapped to any ensemble tensors"
            raise LoadError(f"in ensemble {name}, {what}")


def _check_outputs(name: str, step: EnsembleStep, model: ModelSpec, tensors: dict[str, GraphTensor]) -> None:
    known = {tensor.name: tensor for tensor in model.outputs}
    for output_name, tensor_name in step.outputs.items():
        if output_name not in known:
            what = f"is mapped from non-existing output {output_name} in model {step.model}"
            raise LoadError(f"in ensemble {name}, ensemble tensor {tensor_name} {what}")
    for output_name, tensor_name in step.outputs.items():
        tensor = known[output_name]
        _add(name, tensor_name, GraphTensor.of(model, tensor, tensor.dims), tensors)


def _add(name: str, tensor_name: str, found: GraphTensor, tensors: dict[str, GraphTensor]) -> None:
    """What a step says of a tensor must agree with what was said before. Where one side has a wildcard, each request
    is checked. A model that does not batch may have the batch dimension in its own dims."""
    known = tensors.setdefault(tensor_name, found)
    where = f"in ensemble {name}, ensemble tensor {tensor_name}"
    if known.datatype != found.datatype:
        raise LoadError(
            f"{where}: inconsistent data type: {known.datatype} is inferred from model {known.model} while "
            f"{found.datatype} is inferred from model {found.model}"
        )
    if not (are_compatible(known.dims, found.dims) or are_compatible(known.full_dims, found.full_dims)):
        raise LoadError(
            f"{where}: inconsistent shape: {listed(known.full_dims)} is inferred from model {known.model} while "
            f"{listed(found.full_dims)} is inferred from model {found.model}"
        )


def _is_decoupled(spec: ModelSpec, models: Sequence[ModelSpec], tensors: dict[str, GraphTensor]) -> bool:
    """Whether one request may get several responses. Each decoupled step begins a stream of its own, and no step may
    read tensors of two streams: which of them belong together is not known. 0 is that of the request itself."""
    streams = {tensor.name: 0 for tensor in spec.inputs}
    waiting = list(zip(spec.steps, models, strict=True))
    num_streams = 0
    while True:
        ready = [pair for pair in waiting if all(tensor in streams for tensor in pair[0].inputs.values())]
        if not ready:
            break
        for step, model in ready:
            stream = _one_stream(
                spec.name, tensors[next(iter(step.outputs.values()))].model, step.inputs.values(), streams
            )
            if model.is_decoupled:
                num_streams += 1
                stream = num_streams
            streams |= dict.fromkeys(step.outputs.values(), stream)
        waiting = [pair for pair in waiting if pair not in ready]
    _one_stream(spec.name, spec.name, (tensor.name for tensor in spec.outputs), streams)
    return num_streams > 0


def _one_stream(name: str, model: str, read: Iterable[str], streams: Mapping[str, int]) -> int:
    found = {streams[tensor] for tensor in read}
    if len(found) > 1:
        what = f"step of model '{model}' receives inputs originated from different decoupled models"
        raise LoadError(f"in ensemble {name}, {what}")
    return found.pop()


def are_compatible(dims: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether two shapes are equal where neither has a wildcard."""
    return len(dims) == len(others) and all(
        dim == other or -1 in (dim, other) for dim, other in zip(dims, others, strict=True)
    )


def listed(dims: Iterable[int]) -> str:
    """A shape as Triton writes it."""
    return "[" + ",".join(map(str, dims)) + "]"
