"""Checks a tensor request against its model, with the order and the texts of Triton's server."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

from slipstream.router.model_repository.graph_checks import listed
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest
from slipstream.router.tensors.model_spec import ModelSpec, TensorSpec
from slipstream.router.tensors.tensor import Tensor

LENGTH = struct.Struct("<I")  # before each element of BYTES
MAX_UNEQUAL_TEXTS = 1 << 20  # elements of BYTES are counted one by one, 0.1 s for so many, unless all are equally long
BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class RequestCheck:
    """Of one version of a model; what can be computed once is computed here."""

    def __init__(self, spec: ModelSpec) -> None:
        self._model = spec.name
        self._max_batch_size = spec.max_batch_size
        batches = spec.max_batch_size > 0
        self._inputs = {tensor.name: InputCheck(tensor, spec.name, batches=batches) for tensor in spec.inputs}
        self._required = [tensor.name for tensor in spec.inputs if not tensor.is_optional]
        self._num_required, self._num_known = len(self._required), len(self._inputs)
        self._output_names = frozenset(tensor.name for tensor in spec.outputs)
        self._is_reshaped = any(tensor.reshape is not None for tensor in spec.inputs)

    def check(self, request: InferRequest) -> int:
        """The number of rows of a request, 1 if the model does not batch. Inputs get the shapes that the model sees.
        Raises InferError INVALID_ARG."""
        inputs = request.inputs
        num_given = len(inputs)
        if num_given > 1 and len({tensor.name for tensor in inputs}) < num_given:
            raise InferError(f"{request_prefix(request)}input '{repeated(inputs)}' already exists in request")
        for output in request.requested:
            if output.name not in self._output_names:
                raise InferError(f"unexpected inference output '{output.name}' for model '{self._model}'")
        if not self._num_required <= num_given <= self._num_known:
            raise InferError(f"{request_prefix(request)}{self._wrong_number(inputs)}")
        for tensor in inputs:
            if tensor.name not in self._inputs:
                raise InferError(f"unexpected inference input '{tensor.name}' for model '{self._model}'")
        batch_size = self._batch_size(request) if self._max_batch_size else 1
        for tensor in inputs:
            problem = self._inputs[tensor.name].problem(tensor)
            if problem is not None:
                raise InferError(f"{request_prefix(request)}{problem}")
        if num_given < self._num_known:
            self._check_required(request)
        if self._is_reshaped:
            request.inputs = [self._inputs[tensor.name].reshaped(tensor) for tensor in inputs]
        return batch_size

    def _batch_size(self, request: InferRequest) -> int:
        batch_size = None
        for tensor in request.inputs:
            if not tensor.shape:
                problem = f"input '{tensor.name}' has no shape but model requires batch dimension for '{self._model}'"
                raise InferError(request_prefix(request) + problem)
            if batch_size is None:
                batch_size = tensor.shape[0]
            elif tensor.shape[0] != batch_size:
                problem = f"input '{tensor.name}' batch size does not match other inputs for '{self._model}'"
                raise InferError(request_prefix(request) + problem)
        if batch_size is not None and batch_size > self._max_batch_size:
            problem = f"inference request batch-size must be <= {self._max_batch_size} for '{self._model}'"
            raise InferError(request_prefix(request) + problem)
        return batch_size or 1

    def _check_required(self, request: InferRequest) -> None:
        """With optional inputs, the right number of inputs may still lack a required one."""
        given = {tensor.name for tensor in request.inputs}
        if not given.issuperset(self._required):
            raise InferError(f"{request_prefix(request)}{self._wrong_number(request.inputs)}")

    def _wrong_number(self, inputs: list[Tensor]) -> str:
        given = [tensor.name for tensor in inputs]
        missing = [name for name in self._required if name not in given]
        num_required, num_known = self._num_required, self._num_known
        between = f"number of inputs between {num_required} and {num_known} but got {len(given)} inputs"
        exactly = f"{num_known} inputs but got {len(given)} inputs"
        return (
            f"expected {exactly if num_required == num_known else between} for model '{self._model}'. Got input(s) "
            f"{quoted(given)}, but missing required input(s) {quoted(missing)}. Please provide all required input(s)."
        )


class InputCheck:
    """Of one input of a model."""

    def __init__(self, spec: TensorSpec, model: str, *, batches: bool) -> None:
        self._spec = spec
        self._model = model
        self._batches = batches
        self._dims = (-1, *spec.dims) if batches else spec.dims  # of a request
        self._is_fixed = all(dim != -1 for dim in spec.dims)
        element_bytes = DATATYPES[spec.datatype].element_bytes
        self._element_bytes = element_bytes
        self._row_bytes = math.prod(spec.dims) * element_bytes if self._is_fixed and element_bytes is not None else None

    def problem(self, tensor: Tensor) -> str | None:
        """What is wrong with an input of a request; its batch dimension has been checked."""
        spec = self._spec
        if tensor.datatype != spec.datatype:
            expected = f"but model '{self._model}' expects '{spec.datatype}'"
            return f"inference input '{tensor.name}' data-type is '{tensor.datatype}', {expected}"
        shape = tensor.shape
        if self._is_fixed and (shape[1:] if self._batches else shape) == spec.dims:
            if self._row_bytes is not None:
                expected_bytes = self._row_bytes * shape[0] if self._batches else self._row_bytes
                return None if tensor.num_bytes == expected_bytes else self._wrong_size(tensor, expected_bytes)
        elif not self._fits(shape):
            return self._wrong_shape(shape)
        if self._element_bytes is None:
            return self._wrong_elements(tensor)
        expected_bytes = tensor.num_elements * self._element_bytes
        return None if tensor.num_bytes == expected_bytes else self._wrong_size(tensor, expected_bytes)

    def reshaped(self, tensor: Tensor) -> Tensor:
        """The tensor with the shape that the model sees."""
        reshape = self._spec.reshape
        if reshape is None:
            return tensor
        batch, row = (tensor.shape[:1], tensor.shape[1:]) if self._batches else ((), tensor.shape)
        shape = batch + filled(reshape, of=self._spec.dims, values=row)
        return Tensor(tensor.name, tensor.datatype, shape, tensor.data)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if len(shape) != len(self._dims):
            return False
        return all(size >= 0 and dim in (-1, size) for dim, size in zip(self._dims, shape, strict=True))

    def _wrong_shape(self, shape: tuple[int, ...]) -> str:
        name, model = self._spec.name, self._model
        row = shape[1:] if self._batches else shape
        if len(shape) == len(self._dims) and -1 in row:
            return (
                f"All input dimensions should be specified for input '{name}' for model '{model}', got {listed(shape)}"
            )
        note = BATCH_NOTE if self._batches else ""
        wanted = f"Expected {listed(self._dims)}, got {listed(shape)}. {note}"
        return f"unexpected shape for input '{name}' for model '{model}'. {wanted}"

    def _wrong_size(self, tensor: Tensor, expected_bytes: int) -> str:
        sizes = f"Expected {expected_bytes}, got {tensor.num_bytes}"
        return f"input byte size mismatch for input '{tensor.name}' for model '{self._model}'. {sizes}"

    def _wrong_elements(self, tensor: Tensor) -> str | None:
        view, expected = tensor.view, tensor.num_elements
        if are_equally_long(view, expected):
            return None
        where = f"for inference input '{tensor.name}' for model '{self._model}'"
        if expected > MAX_UNEQUAL_TEXTS:
            return f"too many string elements {expected} {where}, at most {MAX_UNEQUAL_TEXTS} if their lengths differ"
        return None if are_well_formed(view, expected) else self._wrong_text(view, expected, where)

    @staticmethod
    def _wrong_text(view: memoryview, expected: int, where: str) -> str | None:
        position, num_elements, end = 0, 0, len(view)
        while position < end:
            if end - position < LENGTH.size:
                return (
                    f"incomplete string length indicator {where}, expecting {LENGTH.size} bytes but only "
                    f"{end - position} bytes available. Please make sure the string length indicator is in one buffer."
                )
            num_elements += 1
            if num_elements > expected:
                return f"unexpected number of string elements {num_elements} {where}, expecting {expected}"
            position += LENGTH.size
            num_bytes = LENGTH.unpack_from(view, position - LENGTH.size)[0]
            if position + num_bytes > end:
                sizes = f"expecting string of length {num_bytes} but only {end - position} bytes available"
                return f"incomplete string data {where}, {sizes}"
            position += num_bytes
        if num_elements != expected:
            return f"expected {expected} string elements {where}, got {num_elements}"
        return None


def are_equally_long(view: memoryview, num_elements: int) -> bool:
    """Whether `view` has so many elements of BYTES, more than one and all of the same length."""
    if num_elements < 2 or len(view) % num_elements:
        return False
    stride = len(view) // num_elements
    if stride < LENGTH.size:
        return False
    length = LENGTH.pack(stride - LENGTH.size)
    return all(
        view[index::stride].tobytes() == length[index : index + 1] * num_elements for index in range(LENGTH.size)
    )


def are_well_formed(view: memoryview, num_elements: int) -> bool:
    """Whether `view` has so many elements of BYTES."""
    position = 0
    try:
        for _ in range(num_elements):
            position += LENGTH.size + LENGTH.unpack_from(view, position)[0]
    except struct.error:  # beyond the end
        return False
    return position == len(view)


def repeated(inputs: Iterable[Tensor]) -> str:
    """The first name that an earlier input has too."""
    names: set[str] = set()
    for tensor in inputs:
        if tensor.name in names:
            return tensor.name
        names.add(tensor.name)
    raise AssertionError("all names differ")


def request_prefix(request: InferRequest) -> str:
    return f"[request id: {request.id or '<id_unknown>'}] "


def filled(shape: tuple[int, ...], *, of: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with the sizes that `values` has where `of` has a wildcard, in that order."""
    sizes = iter([value for dim, value in zip(of, values, strict=True) if dim == -1])
    return tuple(next(sizes) if dim == -1 else dim for dim in shape)


def quoted(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"
