"""A router that serves a repository beside a language model, in the test's event loop: the workers of the model are
mocks that answer by rules, the instances of other models are processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import tritonclient.grpc.aio as triton
from tritonclient.utils import np_to_triton_dtype

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.kserve_config import KServeGrpcConfig, TensorMetricsConfig
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.process.addresses import Addresses
from slipstream.router.router import Router
from slipstream.workers.instances.host_config import InstanceHostConfig
from slipstream.workers.instances.instance_host import InstanceHost
from slipstream.workers.mock.mock_profile import MockProfile
from slipstream.workers.mock.mock_program import MockConfig, MockProgram
from slipstream.workers.mock.script.script_file import read_script
from slipstream.workers.mock.script.scripted_outputs import ScriptedOutputs
from tests.support.router.fake_cluster import MODEL_DIR
from tests.support.router.raw_client import Client

TIMEOUT_S = 20.0
TOKEN = "secret"
CHAT = "demo"
LONG = "one two three four five six seven eight nine ten"
RULES: list[dict[str, Any]] = [
    {"match": "count", "reply": LONG},
    {"match": "stop here", "reply": "first part. STOP second part."},
    {"match": r"say (?P<word>\w+)", "reply": r"\g<word>!"},
]
Array = np.ndarray[Any, Any]
Parameters = Mapping[str, bool | int | str]


def strings(*texts: str) -> Array:
    return np.array([text.encode() for text in texts], np.object_)


@dataclass
class LanguageLab:
    router: Router
    addresses: Addresses
    folder: Path
    client: triton.InferenceServerClient
    workers: list[tuple[MockProgram, asyncio.Task[None]]] = field(default_factory=list)

    async def infer(
        self, model: str, inputs: Mapping[str, Array], parameters: Parameters | None = None, **options: Any
    ) -> list[triton.InferResult]:
        """All responses. Raises InferenceServerException."""
        return [one async for one in self.stream(model, inputs, parameters, **options)]

    async def stream(
        self, model: str, inputs: Mapping[str, Array], parameters: Parameters | None = None, **options: Any
    ) -> AsyncIterator[triton.InferResult]:
        async for result, error in self.client.stream_infer(self.requests(model, inputs, parameters, **options)):
            if error is not None:
                raise error
            yield result

    @staticmethod
    async def requests(
        model: str, inputs: Mapping[str, Array], parameters: Parameters | None = None, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """One, as `stream_infer` of the client takes it."""
        given = [infer_input(name, array) for name, array in inputs.items()]
        yield {"model_name": model, "inputs": given, "parameters": parameters, **options}

    async def text(self, model: str, prompt: str, parameters: Parameters | None = None, *, stream: bool = False) -> str:
        """The text of the first output, without the prompt."""
        inputs = {
            "text_input": strings(prompt),
            "stream": np.array([stream]),
            "exclude_input_in_output": np.array([True]),
        }
        results = await self.infer(model, inputs, parameters)
        return "".join(texts_of(result, "text_output")[0] for result in results)

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        """Status and JSON of an answer of the HTTP port."""
        status, data = await self.post_raw(path, body)
        return status, orjson.loads(data)

    async def post_raw(self, path: str, body: object, key: str = "") -> tuple[int, bytes]:
        data = orjson.dumps(body)
        return await self._call(f"POST {path} HTTP/1.1\r\nContent-Length: {len(data)}\r\n", key, data)

    async def get(self, path: str, key: str = "") -> tuple[int, str]:
        status, answer = await self._call(f"GET {path} HTTP/1.1\r\n", key, b"")
        return status, answer.decode()

    async def _call(self, head: str, key: str, body: bytes) -> tuple[int, bytes]:
        client = await Client.connect(self.addresses.http.port)
        try:
            authorization = f"Authorization: Bearer {key}\r\n" if key else ""
            client.send(f"{head}Host: x\r\n{authorization}\r\n".encode() + body)
            status, _, answer = await client.response()
            return status, answer
        finally:
            await client.close()

    async def completion(self, prompt: str | list[int], **fields: Any) -> dict[str, Any]:
        """The first choice of an answer in the API of OpenAI."""
        body = {"model": CHAT, "prompt": prompt, **fields}
        status, answer = await self.post("/v1/completions", body)
        assert status == 200, answer
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    async def join(self, model: str = CHAT, *, step_s: float = 0.001, rules: Sequence[dict[str, Any]] = RULES) -> None:
        """A worker connects."""
        at = self.addresses.workers
        path = self.folder / "script.yaml"
        path.write_text(json.dumps({"tokenizer": str(MODEL_DIR), "rules": list(rules)}))
        profile, policy = MockProfile(step_s=step_s), ScriptedOutputs.load(read_script(path), MODEL_DIR)
        name = f"{model}-{len(self.workers)}"
        program = MockProgram(MockConfig(name, "decode", model, at.host, at.port, TOKEN, profile, policy=policy))
        self.workers.append((program, asyncio.create_task(program.run())))

    @property
    def num_generations(self) -> int:
        """Requests that the dispatchers have."""
        return sum(self.router.service.snapshot_of(name).num_running for name in self.router.service.models)


def infer_input(name: str, array: Array) -> triton.InferInput:
    given = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(array)
    return given


def texts_of(result: triton.InferResult, output: str) -> list[str]:
    array = result.as_numpy(output)
    assert array is not None, f"there is no {output}"
    return [text.decode() for text in array.flatten()]


def write_language_model(
    folder: Path, name: str, config: str = 'backend: "vllm"', arguments: Mapping[str, Any] | None = None
) -> Path:
    """A model without code: its configuration, and `model.json` if there are arguments."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(config)
    if arguments is not None:
        (version / "model.json").write_text(json.dumps(arguments))
    return folder / name


@asynccontextmanager
async def language_lab(
    tmp_path: Path,
    *,
    language_models: Mapping[str, str] | None = None,
    sources: Sequence[ModelSource] | None = None,
    step_s: float = 0.001,
    joins: bool = True,
    has_instances: bool = False,
    keys: Path | None = None,
    **settings: Any,
) -> AsyncIterator[LanguageLab]:
    """The repository is `tmp_path / "models"`. At the end nothing may be left of any request."""
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    repository = RepositoryConfig(
        (str(folder),),
        grpc=KServeGrpcConfig(port=0),
        metrics=TensorMetricsConfig(port=0, gpu=False),
        language_models=dict(language_models or {}),
        **settings,
    )
    instances = tmp_path / "i.sock"
    models = [ModelSource(CHAT, MODEL_DIR)] if sources is None else sources
    access = AccessConfig(str(keys)) if keys is not None else AccessConfig()
    config = RouterConfig(HttpConfig(port=0), access=access)
    router = Router(config, models, TOKEN, repository=repository, instances_path=instances)
    addresses = await router.start()
    assert addresses.repository is not None
    assert addresses.repository.grpc is not None
    client = triton.InferenceServerClient(f"127.0.0.1:{addresses.repository.grpc.port}")
    lab = LanguageLab(router, addresses, tmp_path, client)
    host = InstanceHost(InstanceHostConfig(f"unix:{instances}", TOKEN, "a", logs=str(tmp_path)))
    running = asyncio.create_task(host.run()) if has_instances else None
    try:
        if joins:
            await lab.join(step_s=step_s)
        async with asyncio.timeout(TIMEOUT_S):
            if joins:
                await router.wait_loaded()
            yield lab
            assert router.tensors is not None
            assert router.tensors.ledger["num_requests"] == 0
    finally:
        await client.close()
        await router.stop()
        for program, task in lab.workers:
            program.drain()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if running is not None:
            host.stop(1.0)
            await running
