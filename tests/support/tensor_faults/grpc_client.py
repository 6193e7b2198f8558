"""A client of KServe over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.support.tensor_faults.tensor_call import DATATYPES, Refused, TensorCall, array_of

SERVICE = "/inference.GRPCInferenceService/"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


class GrpcTensorClient:
    """A TensorClient."""

    protocol = "grpc"

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._infer = self._channel.unary_unary(
            f"{SERVICE}ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        self._stream = self._channel.stream_stream(
            f"{SERVICE}ModelStreamInfer", pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )

    async def infer(self, call: TensorCall) -> dict[str, np.ndarray]:
        return outputs_of(await answered(lambda: self._infer(request_of(call))))

    async def leave(self, call: TensorCall, after_s: float) -> None:
        running = self._infer(request_of(call))
        await asyncio.sleep(after_s)  # what the server has done with it by then is the point
        running.cancel()

    async def stream(self, call: TensorCall, most: int) -> AsyncIterator[dict[str, np.ndarray]]:
        """The responses of a decoupled model; cancels after `most`."""
        async for outputs in self.stream_message(request_of(call), most):
            yield outputs

    async def stream_message(self, request: pb.ModelInferRequest, most: int) -> AsyncIterator[dict[str, np.ndarray]]:
        running = self._stream()
        try:
            request.parameters["triton_enable_empty_final_response"].bool_param = True
            await answered(lambda: running.write(request))
            while True:
                message = await answered(running.read)
                if message is grpc.aio.EOF:
                    raise ConnectionResetError("the stream ended before the final response")
                if message.error_message:
                    raise Refused("stream", message.error_message)
                if message.infer_response.outputs:  # the final response of a model may have none
                    yield outputs_of(message.infer_response)
                    most -= 1
                if not most or message.infer_response.parameters["triton_final_response"].bool_param:
                    return
        finally:
            running.cancel()

    async def close(self) -> None:
        await self._channel.close()


async def answered(begin: Callable[[], Any]) -> Any:
    """Raises Refused for an error of gRPC."""
    try:
        return await begin()
    except grpc.aio.AioRpcError as error:
        raise Refused(error.code().name, error.details() or "") from error


def request_of(call: TensorCall) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=call.model)
    for name, array in call.inputs.items():
        request.inputs.add(name=name, datatype=DATATYPES[array.dtype.name], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    for name, value in call.parameters.items():
        setattr(request.parameters[name], "bool_param" if isinstance(value, bool) else "int64_param", value)
    return request


def outputs_of(response: pb.ModelInferResponse) -> dict[str, np.ndarray]:
    return {
        output.name: array_of(raw, output.datatype, output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
