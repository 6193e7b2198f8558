"""A gRPC server with tensor models that have no instances, and a client of it, on one event loop."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from slipstream.router.access.access import Access
from slipstream.router.api.kserve.grpc.grpc_server import GrpcServer
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.kserve_config import KServeGrpcConfig
from slipstream.router.observability.tracing.tracer import Tracer
from slipstream.router.tensor_memory.region_pool import RegionPool
from tests.support.router.fake_tensor_service import FakeTensorService, fake_models

SERVICE = "/inference.GRPCInferenceService/"
VECTOR = np.arange(4, dtype=np.float32)
Metadata = Sequence[tuple[str, str]]


@dataclass
class GrpcLab:
    service: FakeTensorService
    server: KServeServer
    pool: RegionPool
    port: int
    channel: grpc.aio.Channel
    listening: GrpcServer

    async def call(
        self, name: str, request: pb.ModelInferRequest, *, metadata: Metadata = (), **options: object
    ) -> object:
        """One RPC of one request, whose message is called as the RPC is."""
        answer = getattr(pb, f"{name}Response")
        method = self.channel.unary_unary(
            f"{SERVICE}{name}", lambda message: message.SerializeToString(), answer.FromString
        )
        return await method(request, metadata=metadata, **options)

    async def infer(
        self, request: pb.ModelInferRequest, *, metadata: Metadata = (), **options: object
    ) -> pb.ModelInferResponse:
        return await self.call("ModelInfer", request, metadata=metadata, **options)

    def stream(self, metadata: Metadata = ()) -> grpc.aio.StreamStreamCall:
        method = self.channel.stream_stream(
            f"{SERVICE}ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        return method(metadata=metadata)

    async def all_responses(
        self, *requests: pb.ModelInferRequest, metadata: Metadata = ()
    ) -> list[pb.ModelStreamInferResponse]:
        """What a stream with these requests answers until its end."""
        stream = self.stream(metadata)
        for request in requests:
            await stream.write(request)
        await stream.done_writing()
        return [response async for response in stream]


@asynccontextmanager
async def grpc_lab(
    config: KServeGrpcConfig | None = None, access: Access | None = None, tracer: Tracer | None = None
) -> AsyncIterator[GrpcLab]:
    """At the end nothing may be left: no request, no response, no memory."""
    service = fake_models()
    server = KServeServer(service, service)
    with RegionPool() as pool:
        config, access = config or KServeGrpcConfig(port=0), access or Access()
        listening = GrpcServer(config, server, access, pool, host="127.0.0.1", tracer=tracer)
        port = await listening.start()
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        try:
            yield GrpcLab(service, server, pool, port, channel, listening)
        finally:
            await channel.close()
            await listening.stop()
        assert not service.running
        assert service.num_leased == 0
        assert pool.usage.num_leases == 0


def infer_request(
    model: str = "add_sub",
    inputs: Sequence[str] = ("A", "B"),
    array: np.ndarray = VECTOR[None],
    *,
    datatype: str = "FP32",
    request_id: str = "",
    **parameters: bool | int | str | float,
) -> pb.ModelInferRequest:
    """All inputs have the same data."""
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    for name in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for name, value in parameters.items():
        setattr(request.parameters[name], kinds[type(value)], value)
    return request


def repeat_request(
    *values: int, model: str = "repeat", request_id: str = "", **parameters: bool
) -> pb.ModelInferRequest:
    array = np.array(values, np.int32)
    return infer_request(model, ["IN"], array, datatype="INT32", request_id=request_id, **parameters)


@asynccontextmanager
async def refused(code: grpc.StatusCode, text: str = "") -> AsyncIterator[None]:
    """What is done here must fail with this status, whose details contain `text`."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert caught.value.code() == code, caught.value
    assert text in (caught.value.details() or "")


def access_with_keys(folder: Path) -> Access:
    """The key `user` is for the model add_sub, `boss` is an administrator's."""

    def entry(name: str, more: str) -> str:
        return f"  - {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}, {more}}}\n"

    keys = folder / "keys.yaml"
    text = entry("user", "models: [add_sub], requests_per_minute: 2, tenant: lab") + entry("boss", "admin: true")
    keys.write_text(f"keys:\n{text}")
    keys.chmod(0o600)
    return Access(AccessConfig(keys_file=str(keys)))
