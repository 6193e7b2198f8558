"""Endpoints of OpenAI's shape in front of tensor models that are computed in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import orjson

from slipstream.router.access.access import Access
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.kserve.http.kserve_api import KServeApi
from slipstream.router.api.kserve.kserve_server import KServeServer, event_that_is_set
from slipstream.router.api.tensors.models.tensor_arrays import Array, array_of, data_of
from slipstream.router.api.tensors.tensor_endpoints import TensorEndpoints
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.endpoints_config import EndpointsConfig
from slipstream.router.config.kserve_config import KServeHttpConfig, RestrictedApis
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.config.store_config import StoreConfig
from slipstream.router.front.front import Front
from slipstream.router.http.server import HttpServer
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.tensor import Tensor
from tests.support.router.fake_cluster import FakeService, Script
from tests.support.router.fake_tensor_service import Answer, FakeSubmission, FakeTensorService
from tests.support.router.kserve_site import request_bytes
from tests.support.router.raw_client import Client

Compute = Callable[..., Mapping[str, Any]]


def computed(compute: Compute) -> Answer:
    """A model whose one response is what a function makes of its inputs, given by name."""

    def answer(submission: FakeSubmission) -> None:
        inputs = {tensor.name: array_of(tensor) for tensor in submission.request.inputs}
        respond(submission, compute(**inputs))

    return answer


def respond(submission: FakeSubmission, outputs: Mapping[str, Any], *, is_final: bool = True) -> None:
    """Gives a response with these outputs; texts are lists of `str`."""
    datatypes = {output.name: output.datatype for output in submission.service.specs[submission.request.model].outputs}
    wanted = {output.name for output in submission.request.requested}
    response = submission.response({})
    for name in datatypes.keys() & outputs.keys():
        value = outputs[name]
        array = texts(value) if datatypes[name] == "BYTES" else np.asarray(value)
        if not wanted or name in wanted:
            response.outputs.append(Tensor(name, datatypes[name], array.shape, data_of(datatypes[name], array)))
    submission.respond_with(response, is_final=is_final)


def texts(value: Any) -> Array:
    """Elements of BYTES from a list, or lists, of `str` or `bytes`."""
    array = np.array(value, dtype=object)
    encoded = np.empty(array.size, dtype=object)
    encoded[:] = [one.encode() if isinstance(one, str) else one for one in array.ravel()]
    return encoded.reshape(array.shape)


@dataclass
class EndpointSite:
    models: FakeTensorService
    front: Front
    port: int
    pool: RegionPool
    endpoints: TensorEndpoints

    @contextlib.asynccontextmanager
    async def client(self, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
        """OpenAI's own client, without retries."""
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0
        ) as client:
            yield client

    async def call(
        self, method: str, path: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        client = await Client.connect(self.port)
        try:
            client.send(request_bytes(method, path, body, headers))
            return await client.response()
        finally:
            await client.close()

    async def json(self, method: str, path: str, body: object = b"") -> Any:
        """The JSON of an answer that succeeds."""
        status, _, answer = await self.call(method, path, body)
        assert status == 200, answer
        return orjson.loads(answer)

    async def error(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """Status and error object of a POST that fails."""
        status, _, answer = await self.call("POST", path, body)
        fields: dict[str, Any] = orjson.loads(answer)
        assert list(fields) == ["error"], fields
        assert set(fields["error"]) == {"message", "type", "param", "code"}
        return status, fields["error"]


@contextlib.asynccontextmanager
async def endpoint_site(
    models: FakeTensorService,
    config: EndpointsConfig,
    *,
    keys: Path | None = None,
    store: Path | None = None,
    loaded: asyncio.Event | None = None,
    restricted: Sequence[RestrictedApis] = (),
) -> AsyncIterator[EndpointSite]:
    """Ends with nothing leased and nothing running."""
    access = Access(AccessConfig(str(keys)) if keys is not None else None)
    access.open()
    service = FakeService(lambda _: Script([]))
    with RegionPool(64 << 20) as pool:
        kserve = KServeServer(models, models, loaded=loaded or event_that_is_set())
        router = RouterConfig(HttpConfig(port=0), store=StoreConfig(directory=str(store) if store else None))
        front = Front(Catalog(), service, lambda *_: None, lambda: 0, router, access)
        front.serve_tensors(KServeApi(kserve, pool, KServeHttpConfig(restricted=tuple(restricted)), access))
        endpoints = TensorEndpoints(config, kserve, pool, access, front.apis.flow.bodies, restricted=restricted)
        front.serve_endpoints(endpoints)
        server = HttpServer(
            HttpConfig(port=0),
            front,
            ExchangeContext,
            check_caller=front.check_caller,
            error_form_of=front.error_form_of,
            body_places=front.body_places,
        )
        port = await server.start()
        opened = contextlib.AsyncExitStack()
        try:
            front.open(opened)
            yield EndpointSite(models, front, port, pool, endpoints)
        finally:
            await server.stop()
            await opened.aclose()
            await access.close()
            await service.close()
        assert (pool.usage.num_leases, models.num_leased, models.running) == (0, 0, set())


def write_word_tokenizer(folder: Path, words: str, max_tokens: int = 16) -> None:
    """A tokenizer of whole words, of which each text begins with [CLS] and ends with [SEP]."""
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    vocabulary |= {word: 4 + index for index, word in enumerate(words.split())}
    special = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    single = [*special, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": {
                name: {"id": name, "ids": [vocabulary[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": max_tokens, "pad_token": "[PAD]", "unk_token": "[UNK]"})
    )
