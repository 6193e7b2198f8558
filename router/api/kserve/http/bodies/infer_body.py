"""The body of an inference request: a JSON head, and after it the bytes of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.router.api.kserve.http.bodies.binary_head import BinaryHead, BinaryHeads
from slipstream.router.api.kserve.http.bodies.json_tensors import data_from_json, from_json
from slipstream.router.api.kserve.http.bodies.output_form import OutputForm
from slipstream.router.api.kserve.http.bodies.raw_input import raw_input
from slipstream.router.api.kserve.json_fields import (
    as_bool,
    as_list,
    as_text,
    as_uint,
    found,
    has,
    member,
    members,
)
from slipstream.router.api.kserve.request_parameters import apply_parameters
from slipstream.router.api.kserve.tensor_places import TensorPlaces
from slipstream.router.tensor_memory.client_regions import ClientRegions
from slipstream.router.tensor_memory.region_pool import INLINE_BYTES, RegionLease
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, RequestedOutput
from slipstream.router.tensors.model_spec import ModelSpec
from slipstream.router.tensors.tensor import RegionSlice, Tensor, TensorData

SOURCES = "'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'"
MAX_DIM = (1 << 63) - 1


class BinaryPart:
    """What follows the head of a body, taken from the front. Of a body in shared memory (`lease`), a large tensor is
    taken where it lies."""

    __slots__ = ("_at", "_lease", "_view", "uses_lease")

    def __init__(self, view: memoryview, head_bytes: int, lease: RegionLease | None) -> None:
        self._view = view
        self._at = head_bytes
        self._lease = lease
        self.uses_lease = False  # whether a tensor lies in it

    @property
    def num_left(self) -> int:
        return len(self._view) - self._at

    def take(self, num_bytes: int) -> TensorData | None:
        """None: there are not so many."""
        begin, end = self._at, self._at + num_bytes
        if end > len(self._view):
            return None
        self._at = end
        if self._lease is None:
            return self._view[begin:end]
        if num_bytes <= INLINE_BYTES:
            return bytes(self._view[begin:end])
        self.uses_lease = True
        return self._lease.slice_of(begin, num_bytes)


class InferBodyReader:
    """Reads bodies for requests that exist already, with Triton's checks in Triton's order."""

    def __init__(self, regions: ClientRegions, max_input_bytes: int) -> None:
        self._regions = regions
        self._max_input_bytes = max_input_bytes
        self._heads = BinaryHeads()

    def read(
        self, request: InferRequest, view: memoryview, head_bytes: int, places: TensorPlaces, lease: RegionLease | None
    ) -> OutputForm:
        """Fills `request` from a body with a head of that length. Raises InferError."""
        if head_bytes > self._max_input_bytes:
            raise json_too_large(head_bytes, self._max_input_bytes)
        raw_head = view[:head_bytes]
        binary = BinaryPart(view, head_bytes, lease)
        known = self._heads.get(raw_head)
        if known is not None:
            form = self._read_known(request, known, binary, places)
        else:
            form = self._read_new(request, raw_head, binary, places)
        if lease is not None and binary.uses_lease:
            places.keep(lease)
        return form

    def _read_known(
        self, request: InferRequest, head: BinaryHead, binary: BinaryPart, places: TensorPlaces
    ) -> OutputForm:
        head.fill(request)
        for given in head.inputs:
            data = self._binary(given.name, given.num_bytes, binary, places, request.model)
            request.inputs.append(Tensor(given.name, given.datatype, given.shape, data))
        check_all_taken(binary, request.model)
        return head.form

    def _read_new(
        self, request: InferRequest, raw_head: memoryview, binary: BinaryPart, places: TensorPlaces
    ) -> OutputForm:
        head = from_json(raw_head)
        form = OutputForm()
        if has(head, "id"):
            request.id = as_text(head["id"], "Unable to parse 'id'")
        if has(head, "parameters"):
            self._read_parameters(request, head["parameters"], form)
        for given in as_list(member(head, "inputs", "Unable to parse 'inputs'"), "Unable to parse 'inputs'"):
            request.inputs.append(self._input(given, binary, places, request.model))
        check_all_taken(binary, request.model)
        if has(head, "outputs"):
            outputs = as_list(head["outputs"], "Unable to parse 'outputs'")
            request.requested = tuple([self._output(given, form) for given in outputs])
        self._heads.remember(raw_head, head, request, form)
        return form

    def read_raw(
        self, request: InferRequest, view: memoryview, places: TensorPlaces, lease: RegionLease | None, spec: ModelSpec
    ) -> OutputForm:
        """Makes the whole body the one input of the model. Raises InferError."""
        if len(view) > self._max_input_bytes:
            raise raw_too_large(len(view), self._max_input_bytes)
        request.inputs.append(raw_input(spec, view, places, lease))
        return OutputForm(is_binary=True)

    def _read_parameters(self, request: InferRequest, given: object, form: OutputForm) -> None:
        parameters = members(given, "failed to get request params.")
        if "binary_data_output" in parameters:
            form.is_binary = as_bool(parameters["binary_data_output"], "Unable to parse 'binary_data_output'")
            parameters = {name: value for name, value in parameters.items() if name != "binary_data_output"}
        apply_parameters(request, parameters)

    def _input(self, given: object, binary: BinaryPart, places: TensorPlaces, model: str) -> Tensor:
        parameters = found(given, "parameters")
        check_one_source(given, parameters)
        name = as_text(member(given, "name", "Unable to parse 'name'"), "Unable to parse 'name'")
        datatype = as_text(member(given, "datatype", "Unable to parse 'datatype'"), "Unable to parse 'datatype'")
        dims = as_list(member(given, "shape", "Unable to parse 'shape'"), "Unable to parse 'shape'")
        shape = tuple([as_uint(dim, "Unable to parse 'shape'") for dim in dims])
        if max(shape, default=0) > MAX_DIM:
            text = f"shape {list(shape)} contains one or more invalid dimensions".replace(" ", "")
            raise InferError(f"invalid shape for input '{name}': {text}")
        if has(parameters, "binary_data_size"):
            num_bytes = as_uint(parameters["binary_data_size"], "Unable to parse 'binary_data_size'")
            data = self._binary(name, num_bytes, binary, places, model)
        elif has(parameters, "shared_memory_region"):
            data = self._in_client_memory(parameters)
        else:
            if datatype not in DATATYPES:
                raise InferError(f"invalid datatype for input {name}")
            data = places.put(data_from_json(name, datatype, shape, member(given, "data"), self._max_input_bytes))
        return Tensor(name, datatype, shape, data)

    @staticmethod
    def _binary(name: str, num_bytes: int, binary: BinaryPart, places: TensorPlaces, model: str) -> TensorData:
        data = binary.take(num_bytes)
        if data is None:
            missing = f"expecting {num_bytes - binary.num_left} additional bytes for model '{model}'"
            raise InferError(f"unexpected size for input '{name}', {missing}")
        return places.put(data) if isinstance(data, memoryview) else data

    def _in_client_memory(self, parameters: Mapping[str, Any]) -> RegionSlice:
        region = as_text(parameters["shared_memory_region"], "Unable to parse 'shared_memory_region'")
        offset = as_uint(parameters.get("shared_memory_offset", 0), "Unable to parse 'shared_memory_offset'")
        size = as_uint(parameters.get("shared_memory_byte_size", 0), "Unable to parse 'shared_memory_byte_size'")
        return self._regions.slice_of(region, offset, size)

    def _output(self, given: object, form: OutputForm) -> RequestedOutput:
        parameters = found(given, "parameters")
        if has(parameters, "shared_memory_region"):
            check_output_in_memory(parameters)
        name = as_text(member(given, "name", "Unable to parse 'name'"), "Unable to parse 'name'")
        num_classes = 0
        if has(parameters, "classification"):
            num_classes = as_uint(parameters["classification"], "Unable to set 'classification'")
        if has(parameters, "shared_memory_region"):
            return RequestedOutput(name, into=self._in_client_memory(parameters))
        form.binary[name] = False
        if has(parameters, "binary_data"):
            form.binary[name] = as_bool(parameters["binary_data"], "Unable to parse 'binary_data'")
        return RequestedOutput(name, num_classes)


def check_all_taken(binary: BinaryPart, model: str) -> None:
    if binary.num_left:
        raise InferError(f"unexpected additional input data for model '{model}'")


def check_one_source(given: object, parameters: object) -> None:
    """Raises INVALID_ARG unless the data of an input are in exactly one place."""
    names = []
    if has(given, "data"):
        names.append("'data'")
    if isinstance(parameters, dict):
        names += [f"'{name}'" for name in ("binary_data_size", "shared_memory_region") if name in parameters]
    if len(names) != 1:
        problem = f"set {' '.join(names)}" if names else "no field is set"
        raise InferError(f"Input must set only one of the following fields: {SOURCES}. But {problem}")


def check_output_in_memory(parameters: Mapping[str, Any]) -> None:
    if "classification" in parameters:
        raise InferError("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in parameters and as_bool(parameters["binary_data"], "Unable to set 'binary_data'"):
        raise InferError("Output can't set both 'shared_memory_region' and 'binary_data'")


def json_too_large(num_bytes: int, limit_bytes: int) -> InferError:
    return InferError(
        f"request JSON size of {num_bytes} bytes exceeds the maximum allowed input size of {limit_bytes} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def raw_too_large(num_bytes: int, limit_bytes: int) -> InferError:
    return InferError(
        f"Raw input has a byte_size ({num_bytes} bytes) that exceeds the maximum allowed value of {limit_bytes} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
