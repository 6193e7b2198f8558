"""Requests with tensors over gRPC. Those to a decoupled model have a stream each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

from slipstream.cluster.tools.bench.client.bench_target import BenchError, Target
from slipstream.cluster.tools.bench.client.client_answer import ClientAnswer
from slipstream.cluster.tools.bench.tensors.clients.http_client import MAX_KEPT, sequence_parameters
from slipstream.cluster.tools.bench.tensors.clients.infer_client import InferTurn, TurnInput

SERVICE = "/inference.GRPCInferenceService"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
FINAL = "triton_final_response"


class GrpcInferClient:
    """InferClient."""

    def __init__(self, target: Target, model: str, version: str, timeout_s: float) -> None:
        self._model = model
        self._version = version
        self._timeout_s = timeout_s
        self._metadata = [(name.lower(), value) for name, value in target.headers]
        if target.key:
            self._metadata.append(("authorization", f"Bearer {target.key}"))
        credentials = grpc.ssl_channel_credentials() if target.is_tls else None
        self._channel: Any = (
            grpc.aio.insecure_channel(target.netloc, UNLIMITED)
            if credentials is None
            else grpc.aio.secure_channel(target.netloc, credentials, UNLIMITED)
        )
        self._infer = self._channel.unary_unary(f"{SERVICE}/ModelInfer")  # bytes in and out
        self._stream = self._channel.stream_stream(
            f"{SERVICE}/ModelStreamInfer", response_deserializer=service_pb2.ModelStreamInferResponse.FromString
        )
        self._encoded: dict[InferTurn, bytes] = {}
        self._is_streamed = False  # once the model is known to be decoupled

    async def config(self) -> dict[str, Any]:
        request = service_pb2.ModelConfigRequest(name=self._model, version=self._version)
        answer = await self._call("ModelConfig", request, service_pb2.ModelConfigResponse)
        self._is_streamed = answer.config.model_transaction_policy.decoupled
        return as_dict(answer.config)

    async def statistics(self, model: str) -> list[dict[str, Any]]:
        request = service_pb2.ModelStatisticsRequest(name=model)
        answer = await self._call("ModelStatistics", request, service_pb2.ModelStatisticsResponse)
        return [as_dict(one) for one in answer.model_stats]

    async def register(self, region: str, key: str, num_bytes: int) -> None:
        request = service_pb2.SystemSharedMemoryRegisterRequest(name=region, key=key, byte_size=num_bytes)
        await self._call("SystemSharedMemoryRegister", request, service_pb2.SystemSharedMemoryRegisterResponse)

    async def unregister(self, region: str) -> None:
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=region)
        await self._call("SystemSharedMemoryUnregister", request, service_pb2.SystemSharedMemoryUnregisterResponse)

    async def ask(self, turn: InferTurn, before: Sequence[tuple[InferTurn, str]], keep_text: bool) -> ClientAnswer:
        request = self._encoded.get(turn)
        if request is None:
            request = self._request(turn)
            if turn.sequence is None and len(self._encoded) < MAX_KEPT:
                self._encoded[turn] = request
        answer = ClientAnswer(time.perf_counter(), model=self._model)
        try:
            if self._is_streamed:
                await self._ask_streamed(request, answer)
            else:
                await self._infer(request, metadata=self._metadata, timeout=self._timeout_s)
                answer.num_chunks = 1
        except grpc.aio.AioRpcError as error:
            fail(answer, error)
        answer.ended_s = time.perf_counter()
        return answer

    async def close(self) -> None:
        await self._channel.close()

    async def _ask_streamed(self, request: bytes, answer: ClientAnswer) -> None:
        call = self._stream(metadata=self._metadata, timeout=self._timeout_s)
        await call.write(request)
        await call.done_writing()
        async for response in call:
            now_s = time.perf_counter()
            if response.error_message:
                answer.fail("error in the stream", response.error_message)
            if response.infer_response.outputs:
                if answer.first_s:
                    answer.gaps.append((now_s - answer.latest_s, 1))
                answer.first_s, answer.latest_s = answer.first_s or now_s, now_s
                answer.num_chunks += 1

    def _request(self, turn: InferTurn) -> bytes:
        message = service_pb2.ModelInferRequest(model_name=self._model, model_version=self._version)
        for one in turn.inputs:
            add_input(message, one)
        for name, value in sequence_parameters(turn.sequence).items():
            parameter = message.parameters[name]
            if isinstance(value, bool):
                parameter.bool_param = value
            else:
                parameter.int64_param = value
        encoded: bytes = message.SerializeToString()
        return encoded

    async def _call(self, name: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(
            f"{SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            return await call(request, metadata=self._metadata, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"{name}: {error.details()}") from None


def add_input(message: Any, one: TurnInput) -> None:
    tensor = message.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
    if one.place is None:
        message.raw_input_contents.append(one.data)
        return
    tensor.parameters["shared_memory_region"].string_param = one.place.region
    tensor.parameters["shared_memory_offset"].int64_param = one.place.offset
    tensor.parameters["shared_memory_byte_size"].int64_param = len(one.data)


def fail(answer: ClientAnswer, error: Any) -> None:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        answer.fail("timeout", details)
    elif code is grpc.StatusCode.UNAVAILABLE and "connect" in details:
        answer.fail("no connection", details)
    else:
        answer.fail(f"gRPC {code.name}", details)


def as_dict(message: Any) -> dict[str, Any]:
    """As in JSON; 64-bit integers are texts."""
    fields: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return fields
