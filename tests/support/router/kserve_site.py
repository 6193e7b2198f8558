"""The tensor API over HTTP in front of models that are computed in the event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from slipstream.router.access.access import Access
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.kserve.http.kserve_api import KServeApi
from slipstream.router.api.kserve.kserve_server import KServeServer
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.kserve_config import KServeHttpConfig
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.front.front import Front
from slipstream.router.http.server import HttpServer
from slipstream.router.tensor_memory.client_regions import ClientRegions
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.model_spec import TensorSpec
from slipstream.router.tensors.tensor import Tensor
from tests.support.router.fake_cluster import FakeService, Script
from tests.support.router.fake_tensor_service import FakeSubmission, FakeTensorService, fake_models, tensor_model
from tests.support.router.raw_client import Client

DATATYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
A = [1, 2, 3, 4]
ADD_SUB = "/v2/models/add_sub/infer"
Answer = tuple[int, dict[str, str], bytes]


def given(name: str, datatype: str, shape: list[int], data: object = None, **parameters: object) -> dict[str, Any]:
    """An input of a request."""
    fields: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
    if data is not None:
        fields["data"] = data
    if parameters:
        fields["parameters"] = parameters
    return fields


AB = [given("A", "FP32", [1, 4], A), given("B", "FP32", [1, 4], [[0.5, 1, 1, 1]])]


@dataclass
class KServeSite:
    models: FakeTensorService
    server: HttpServer[ExchangeContext]
    port: int
    pool: RegionPool
    regions: ClientRegions
    kserve: KServeServer

    async def call(
        self, method: str, path: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own; a `body` that is not bytes is sent as JSON."""
        client = await Client.connect(self.port)
        try:
            client.send(request_bytes(method, path, body, headers))
            return await client.response()
        finally:
            await client.close()

    async def post(self, path: str, body: object = b"", headers: Mapping[str, str] | None = None) -> Answer:
        return await self.call("POST", path, body, headers)

    async def json(self, method: str, path: str, body: object = b"") -> Any:
        """The JSON of an answer that succeeds."""
        status, _, answer = await self.call(method, path, body)
        assert status == 200, answer
        return orjson.loads(answer)

    async def error(self, path: str, body: object = b"", headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Status and text of a POST that fails."""
        status, _, answer = await self.post(path, body, headers)
        fields = orjson.loads(answer)
        assert list(fields) == ["error"]
        return status, fields["error"]


def request_bytes(method: str, path: str, body: object = b"", headers: Mapping[str, str] | None = None) -> bytes:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n{lines}\r\n".encode() + data


def binary_body(head: object, *tensors: bytes) -> tuple[bytes, dict[str, str]]:
    """A body with tensors after its head, and the header that it needs."""
    encoded = orjson.dumps(head)
    return encoded + b"".join(tensors), {"Inference-Header-Content-Length": str(len(encoded))}


def echo(submission: FakeSubmission) -> None:
    """Each input X is an output OX, as far as it was asked for."""
    request = submission.request
    wanted = {output.name for output in request.requested}
    outputs = [Tensor("O" + each.name, each.datatype, each.shape, bytes(each.view)) for each in request.inputs]
    outputs = [output for output in outputs if not wanted or output.name in wanted]
    response = submission.response({})
    response.outputs = outputs
    response.parameters = dict(request.parameters)
    submission.respond_with(response)


def models_of_the_site() -> FakeTensorService:
    """Those of `fake_models`, and models that echo: every datatype, a text, a vector, rows with labels."""
    service = fake_models()
    types = [(name, name) for name in DATATYPES] + [("BYTES", "BYTES"), ("BF16", "BF16")]
    service.add(
        tensor_model(
            "types",
            [TensorSpec(name, datatype, (-1,), is_optional=True) for name, datatype in types],
            [TensorSpec("O" + name, datatype, (-1,)) for name, datatype in types],
            max_batch_size=8,
        ),
        echo,
    )
    service.add(tensor_model("text", [TensorSpec("X", "BYTES", (1,))], [TensorSpec("OX", "BYTES", (1,))]), echo)
    service.add(tensor_model("raw", [TensorSpec("X", "FP32", (-1,))], [TensorSpec("OX", "FP32", (-1,))]), echo)
    labelled = TensorSpec("OX", "FP32", (3,), labels=("cat", "dog"))
    service.add(tensor_model("labels", [TensorSpec("X", "FP32", (3,))], [labelled], max_batch_size=4), echo)
    return service


@contextlib.asynccontextmanager
async def kserve_site(
    config: KServeHttpConfig | None = None,
    *,
    keys: Path | None = None,
    pool_bytes: int = 64 << 20,
    http: HttpConfig | None = None,
) -> AsyncIterator[KServeSite]:
    """Ends with nothing leased."""
    models, regions = models_of_the_site(), ClientRegions()
    access = Access(AccessConfig(str(keys)) if keys is not None else None)
    access.open()
    service = FakeService(lambda _: Script([]))
    with RegionPool(pool_bytes) as pool:
        kserve = KServeServer(models, models, regions)
        api = KServeApi(kserve, pool, config or KServeHttpConfig(), access)
        http = http or HttpConfig(port=0)
        front = Front(Catalog(), service, lambda *_: None, lambda: 0, RouterConfig(http), access)
        front.serve_tensors(api)
        server = HttpServer(
            http,
            front,
            ExchangeContext,
            check_caller=front.check_caller,
            error_form_of=front.error_form_of,
            body_places=front.body_places,
        )
        port = await server.start()
        try:
            yield KServeSite(models, server, port, pool, regions, kserve)
        finally:
            await server.stop()
            await access.close()
            await service.close()
        assert pool.usage.num_leases == 0
        assert models.num_leased == 0
        assert not models.running


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def text_elements(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
