"""What is refused of inputs and outputs, once the model has completed them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from tritonclient.grpc.model_config_pb2 import (
    BatchInput,
    BatchOutput,
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
)

from slipstream.router.model_repository.config.config_fault import ConfigFault

WILDCARD = -1
TENSORRT = "tensorrt_plan"
INTEGER_OR_WILDCARD = f"integer >= 1, or {WILDCARD} to indicate a variable-size dimension"


def tensor_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    """Of all inputs and outputs, and of the batch inputs and outputs that are made of them."""
    for fault in _all_faults(config):
        yield ConfigFault(fault.field, f"{fault.text} for {config.name}")


def _all_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    for index, tensor in enumerate(config.input):
        yield from _shape_faults(tensor, f"input[{index}]", "model input ", config.max_batch_size)
        if tensor.format != ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
            yield ConfigFault(f"input[{index}].format", "model input NHWC/NCHW require 3 dims")
        yield from _tensorrt_faults(config, tensor, f"input[{index}]", "input")
    for index, tensor in enumerate(config.output):
        yield from _shape_faults(tensor, f"output[{index}]", "model output ", config.max_batch_size)
        yield from _tensorrt_faults(config, tensor, f"output[{index}]", "output")
    yield from _batch_input_faults(config)
    yield from _batch_output_faults(config)


def _shape_faults(
    tensor: ModelInput | ModelOutput, field: str, prefix: str, max_batch_size: int
) -> Iterator[ConfigFault]:
    if not tensor.name:
        yield ConfigFault(f"{field}.name", f"{prefix}must specify 'name'")
        return
    subject = f"{prefix}'{tensor.name}' "
    if tensor.data_type == DataType.TYPE_INVALID:
        yield ConfigFault(f"{field}.data_type", f"{subject}must specify 'data_type'")
    if not tensor.dims:
        yield ConfigFault(f"{field}.dims", f"{subject}must specify 'dims'")
        return
    if tensor.HasField("reshape") and not tensor.reshape.shape and max_batch_size == 0:
        text = "cannot have empty reshape for non-batching model as scalar tensors are not supported"
        yield ConfigFault(f"{field}.reshape", f"{subject}{text}")
        return
    if not _are_sizes(tensor.dims):
        yield ConfigFault(f"{field}.dims", f"{subject}dimension must be {INTEGER_OR_WILDCARD}")
    elif tensor.HasField("reshape"):
        if not _are_sizes(tensor.reshape.shape):
            text = f"{subject}reshape dimensions must be {INTEGER_OR_WILDCARD}"
            yield ConfigFault(f"{field}.reshape", text)
        else:
            yield from _reshape_faults(tensor.dims, tensor.reshape.shape, f"{field}.reshape", subject)


def _are_sizes(dims: Sequence[int]) -> bool:
    return all(size >= 1 or size == WILDCARD for size in dims)


def _reshape_faults(dims: Sequence[int], shape: Sequence[int], field: str, subject: str) -> Iterator[ConfigFault]:
    """Between wildcards, both must have as many elements: [2, 4, -1, 6] is [8, -1, 1, 6]. An empty shape is one
    element."""
    if (WILDCARD in dims) != (WILDCARD in shape):
        yield ConfigFault(field, f"{subject}has different size for dims and reshape")
        return
    pieces, reshaped = _between_wildcards(dims), _between_wildcards(shape)
    if len(pieces) != len(reshaped):
        text = f"{subject}has different number of variable-size dimensions for dims and reshape"
        yield ConfigFault(field, text)
    elif pieces != reshaped:
        yield ConfigFault(field, f"{subject}has different size for dims and reshape")


def _between_wildcards(dims: Sequence[int]) -> list[int]:
    pieces: list[list[int]] = [[]]
    for size in dims:
        if size == WILDCARD:
            pieces.append([])
        else:
            pieces[-1].append(size)
    return [math.prod(piece) for piece in pieces]


def _tensorrt_faults(
    config: ModelConfig, tensor: ModelInput | ModelOutput, field: str, direction: Literal["input", "output"]
) -> Iterator[ConfigFault]:
    if tensor.is_shape_tensor and config.platform != TENSORRT:
        text = "shape tensors are only supported for TensorRT platform"
        yield ConfigFault(f"{field}.is_shape_tensor", text)
    if tensor.is_non_linear_format_io and config.platform != TENSORRT:
        text = "Non-linear IO format is only supported for the TensorRT platform"
        yield ConfigFault(f"{field}.is_non_linear_format_io", text)
    elif tensor.is_non_linear_format_io and len(tensor.dims) != 3:
        text = f"Non-linear IO format {direction} requires 3 dims"
        yield ConfigFault(f"{field}.is_non_linear_format_io", text)


def _batch_input_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    names = {tensor.name for tensor in config.input}
    for index, batch_input in enumerate(config.batch_input):
        field = f"batch_input[{index}]"
        if len(batch_input.source_input) != 1:
            kind = BatchInput.Kind.Name(batch_input.kind)
            text = f"batch input kind '{kind}' expects 1 source input, got {len(batch_input.source_input)}"
            yield ConfigFault(f"{field}.source_input", text)
        if batch_input.data_type not in (DataType.TYPE_INT32, DataType.TYPE_FP32):
            yield ConfigFault(f"{field}.data_type", "batch input data type must be TYPE_INT32 or TYPE_FP32")
        yield from _source_faults(batch_input.source_input, names, field)


def _batch_output_faults(config: ModelConfig) -> Iterator[ConfigFault]:
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for index, batch_output in enumerate(config.batch_output):
        field = f"batch_output[{index}]"
        if len(batch_output.source_input) != 1:
            kind = BatchOutput.Kind.Name(batch_output.kind)
            text = f"batch output kind '{kind}' expects 1 source input, got {len(batch_output.source_input)}"
            yield ConfigFault(f"{field}.source_input", text)
        yield from _source_faults(batch_output.source_input, inputs, field)
        for name in batch_output.target_name:
            if name not in outputs:
                yield ConfigFault(f"{field}.target_name", f"unknown target output name '{name}'")
            elif list(batch_output.target_name).count(name) > 1:
                text = f"target output name '{name}' can only be specified once"
                yield ConfigFault(f"{field}.target_name", text)


def _source_faults(sources: Sequence[str], names: set[str], field: str) -> Iterator[ConfigFault]:
    for name in sources:
        if name not in names:
            yield ConfigFault(f"{field}.source_input", f"unknown source input name '{name}'")
