"""The requests that warm an instance up before it serves (`model_warmup`)."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

from slipstream.router.infer.requests.request_check import RequestCheck
from slipstream.router.model_repository.config.model_files import WARMUP_FOLDER
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.model_spec import ModelSpec, WarmupInput, WarmupSample
from slipstream.router.tensors.tensor import Tensor

EMPTY_ELEMENT = struct.pack("<I", 0)


def warm_up_requests(spec: ModelSpec) -> list[list[InferRequest]]:
    """The executions that warm up an instance, each a list of requests. Blocks: it reads the samples' files.

    Like Triton, it skips samples whose batch size is 0, the default. Raises OSError, ValueError."""
    executions: list[list[InferRequest]] = []
    for sample in spec.warmup:
        if sample.batch_size:
            requests = _requests(spec, sample)
            executions += [requests] * max(1, sample.count)
    return executions


def _requests(spec: ModelSpec, sample: WarmupSample) -> list[InferRequest]:
    """As many requests of one row as the batch size says. Raises OSError, ValueError."""
    inputs = [_tensor(spec, one) for one in sample.inputs]
    names = {tensor.name for tensor in spec.inputs}
    of_model = [tensor for tensor in inputs if tensor.name in names]  # others are controls of sequences
    try:
        RequestCheck(spec).check(InferRequest(spec.name, spec.version, inputs=of_model))
    except InferError as error:
        raise ValueError(error.message) from None
    return [InferRequest(spec.name, spec.version, inputs=inputs) for _ in range(sample.batch_size)]


def _tensor(spec: ModelSpec, one: WarmupInput) -> Tensor:
    is_control = all(tensor.name != one.name for tensor in spec.inputs)
    shape = (1, *one.dims) if spec.max_batch_size and not is_control else one.dims
    num_elements = math.prod(one.dims)
    element_bytes = DATATYPES[one.datatype].element_bytes
    if one.source == "file":
        data = (spec.folder / WARMUP_FOLDER / Path(one.file)).read_bytes()
        if element_bytes is not None and len(data) < num_elements * element_bytes:
            raise ValueError(
                f"[request id: <id_unknown>] warmup setting expects {num_elements * element_bytes} bytes, but the "
                f"data provided from {one.file}only has {len(data)} bytes"
            )
        data = data if element_bytes is None else data[: num_elements * element_bytes]
    elif element_bytes is None:
        data = EMPTY_ELEMENT * num_elements
    elif one.source == "zero":
        data = bytes(num_elements * element_bytes)
    else:
        data = random.Random(0).randbytes(num_elements * element_bytes)
        if one.datatype == "BOOL":
            data = bytes(byte & 1 for byte in data)
    return Tensor(one.name, one.datatype, shape, data)
