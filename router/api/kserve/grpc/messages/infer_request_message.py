"""A `ModelInferRequest` as it came, and the request to a model that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from slipstream.router.api.kserve.grpc.messages.infer_input import InferInput, contents_data, infer_input
from slipstream.router.api.kserve.grpc.messages.infer_parameters import MemoryReference, apply_parameters
from slipstream.router.api.kserve.grpc.messages.requested_outputs import OutputRequest, output_request
from slipstream.router.api.kserve.grpc.messages.wire_fields import UnknownField, length_delimited_fields
from slipstream.router.tensor_memory.client_regions import ClientRegions
from slipstream.router.tensor_memory.region_pool import ALIGNMENT_BYTES, RegionLease, RegionPool, RegionPoolFull
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_request import InferRequest, RequestedOutput
from slipstream.router.tensors.tensor import RegionSlice, Tensor, TensorData

MODEL, VERSION, ID, PARAMETERS, INPUTS, OUTPUTS, RAW_CONTENTS = range(1, 8)  # the numbers of the message's fields

UNPARSABLE_TEXT = "Unable to parse request"


@dataclass(slots=True)
class InferRequestMessage:
    """The fields as they came; inputs and outputs are parsed when the model is known. `raw_contents` of more than
    `tensor_memory.INLINE_BYTES` are views of the message."""

    model: str = ""
    version: str = ""
    id: str = ""
    parameters: list[bytes | memoryview] = field(default_factory=list)
    inputs: list[bytes | memoryview] = field(default_factory=list)
    outputs: list[bytes | memoryview] = field(default_factory=list)
    raw_contents: list[bytes | memoryview] = field(default_factory=list)

    @classmethod
    def parse(cls, data: bytes) -> InferRequestMessage:
        """Raises InferError if `data` is no such message."""
        try:
            fields = length_delimited_fields(data)
        except UnknownField:
            fields = _fields_by_protobuf(data)
        message = cls()
        try:
            for number, part in fields:
                if number == RAW_CONTENTS:
                    message.raw_contents.append(part)
                elif number == INPUTS:
                    message.inputs.append(part)
                elif number == OUTPUTS:
                    message.outputs.append(part)
                elif number == PARAMETERS:
                    message.parameters.append(part)
                elif number == MODEL:
                    message.model = str(part, "utf-8")
                elif number == VERSION:
                    message.version = str(part, "utf-8")
                elif number == ID:
                    message.id = str(part, "utf-8")
        except UnicodeDecodeError:
            raise InferError(UNPARSABLE_TEXT, InferErrorCode.INTERNAL) from None
        return message


def _fields_by_protobuf(data: bytes) -> list[tuple[int, bytes | memoryview]]:
    """The same fields of a message that has others besides. Raises InferError if it is malformed."""
    try:
        parsed = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        raise InferError(UNPARSABLE_TEXT, InferErrorCode.INTERNAL) from None
    parsed.DiscardUnknownFields()
    raw_contents = list(parsed.raw_input_contents)
    del parsed.raw_input_contents[:]
    fields = length_delimited_fields(parsed.SerializeToString())
    return [*fields, *((RAW_CONTENTS, contents) for contents in raw_contents)]


class InferRequestReader:
    """Turns messages into requests. Large inputs are copied to `pool`, which instances read; `client_regions` are what
    clients have in shared memory of their own."""

    def __init__(self, pool: RegionPool, client_regions: ClientRegions) -> None:
        self._pool = pool
        self._client_regions = client_regions

    def read(self, message: InferRequestMessage, request: InferRequest) -> bool:
        """Fills in all of `request` that the message says. Returns whether a stream is to say that there are no more
        responses even if none comes with that. Raises InferError; then nothing is kept."""
        request.model, request.model_version, request.id = message.model, message.version, message.id
        try:
            wants_empty_final = apply_parameters(request, message.parameters) if message.parameters else False
            inputs = [infer_input(part) for part in message.inputs]
            if message.outputs:
                request.requested = tuple(self._requested(output_request(bytes(part))) for part in message.outputs)
        except DecodeError:
            raise InferError(UNPARSABLE_TEXT, InferErrorCode.INTERNAL) from None
        data = self._data_of(inputs, message)
        self._keep_large(data, request)
        request.inputs = [
            Tensor(each.name, each.datatype, each.shape, contents) for each, contents in zip(inputs, data, strict=True)
        ]
        return wants_empty_final

    def _memory(self, reference: MemoryReference) -> RegionSlice:
        return self._client_regions.slice_of(reference.region, reference.offset, reference.num_bytes)

    def _requested(self, output: OutputRequest) -> RequestedOutput:
        into = self._memory(output.memory) if output.memory is not None else None
        return RequestedOutput(output.name, output.classification, into)

    def _data_of(self, inputs: list[InferInput], message: InferRequestMessage) -> list[TensorData]:
        """Where the bytes of each input are: in the raw contents, in the input's message or in shared memory."""
        raw_contents = iter(message.raw_contents)
        data: list[TensorData] = []
        for each in inputs:
            if each.memory is not None:
                data.append(self._memory(each.memory))
            elif not message.raw_contents:
                data.append(contents_data(each, message.model))
            elif each.contents is not None:
                raise InferError(
                    f"contents field must not be specified when using raw_input_contents for '{each.name}' for model"
                    f" '{message.model}'"
                )
            else:
                contents = next(raw_contents, None)
                if contents is None:
                    raise InferError(
                        f"unable to find data for input tensor '{each.name}' for model '{message.model}' in request."
                    )
                data.append(contents)
        return data

    def _keep_large(self, data: list[TensorData], request: InferRequest) -> None:
        """Puts data that are views of the message into one place of the pool, which the request then holds."""
        large = [(index, each) for index, each in enumerate(data) if isinstance(each, memoryview)]
        if not large:
            return
        lease = self._lease(sum(_aligned(each.nbytes) for _, each in large))
        request.release = lease.release
        offset = 0
        for index, each in large:
            lease.view[offset : offset + each.nbytes] = each
            data[index] = lease.slice_of(offset, each.nbytes)
            offset += _aligned(each.nbytes)

    def _lease(self, num_bytes: int) -> RegionLease:
        try:
            return self._pool.allocate(num_bytes)
        except RegionPoolFull as error:
            raise InferError(str(error), InferErrorCode.UNAVAILABLE) from None


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
