"""What clients ask of ensembles, a language model, models in ONNX and versions; each answer is known before."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.tensor_faults.faulted_graphs import MAX_TOKENS, through_three
from tests.support.tensor_faults.faulted_models import scaled
from tests.support.tensor_faults.grpc_client import GrpcTensorClient
from tests.support.tensor_faults.http_client import HttpTensorClient
from tests.support.tensor_faults.tensor_call import (
    Refused,
    TensorCall,
    TensorClient,
    WrongAnswerError,
    check,
)

GRAPH_KINDS = (
    *("three", "onnx", "split", "embeddings") * 4,
    *("told", "told stream", "leave three", "leave told stream", "slow told stream") * 2,
)
NUM_TOLD = 6
TEXTS = ("def read(path):", "import json", "a wish", "class Reader:\n    pass")
SMALL, LARGE = 16, 50 * 1024  # numbers: within a message and in shared memory
SLOW_S = 0.3  # between two responses that a slow reader takes


@dataclass(slots=True)
class Undisturbed:
    """Answers from before the faults: of the ensemble with a language model by its number, of the encoder by text."""

    told: dict[int, str] = field(default_factory=dict)
    vectors: dict[str, list[float]] = field(default_factory=dict)

    async def learn(self, client: HttpTensorClient) -> None:
        for number in range(NUM_TOLD):
            self.told[number] = await tell(client, number)
        for text in TEXTS:
            (self.vectors[text],) = await embed(client, [text])


class GraphAsks:
    """Of one client. `served` says for each version of the split model how many requests it has answered."""

    def __init__(
        self, client: TensorClient, rng: random.Random, undisturbed: Undisturbed, served: dict[int, int]
    ) -> None:
        self._client, self._rng, self._undisturbed, self._served = client, rng, undisturbed, served

    @property
    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "three": self._three,
            "leave three": self._leave_three,
            "onnx": self._linear,
            "split": self._split,
            "embeddings": self._embed,
            "told": self._tell,
            "told stream": lambda: self._tell_parts(999, 0.0),
            "leave told stream": lambda: self._tell_parts(self._rng.randint(1, 3), 0.0),
            "slow told stream": lambda: self._tell_parts(999, SLOW_S),
        }

    async def _three(self) -> None:
        call = TensorCall("three", {"VALUES": self._values()})
        check((await self._client.infer(call))["SCALED"], through_three(call.inputs["VALUES"]))

    async def _leave_three(self) -> None:
        call = TensorCall("three", {"VALUES": self._values()})
        await self._client.leave(call, self._rng.choice((0.0, 0.001, 0.005, 0.02)))

    async def _linear(self) -> None:
        shape = (self._rng.randint(1, 5), 16)
        rows = np.full(shape, self._rng.randint(0, 99), np.float32)
        check((await self._client.infer(TensorCall("linear", {"VALUES": rows})))["SCALED"], scaled(rows))

    async def _split(self) -> None:
        values = np.arange(1, 17, dtype=np.float32)
        found = (await self._client.infer(TensorCall("split", {"VALUES": values})))["SCALED"]
        version = int(found[0])
        check(found, values * version)
        self._served[version] = self._served.get(version, 0) + 1

    async def _embed(self) -> None:
        if not isinstance(self._client, HttpTensorClient):
            return await self._linear()
        texts = self._rng.choices(TEXTS, k=self._rng.randint(1, 40))
        found = await embed(self._client, texts)
        wanted = [self._undisturbed.vectors[text] for text in texts]
        if not np.allclose(found, wanted, atol=1e-5):
            raise WrongAnswerError(f"vectors of {texts} are {np.array(found)[:, :3]}")
        return None

    async def _tell(self) -> None:
        """The whole answer, in one response."""
        if not isinstance(self._client, HttpTensorClient):
            return await self._tell_parts(999, 0.0)
        number = self._rng.randrange(NUM_TOLD)
        self._check_told(number, await tell(self._client, number))
        return None

    async def _tell_parts(self, most: int, pause_s: float) -> None:
        number, parts = self._rng.randrange(NUM_TOLD), []
        if isinstance(self._client, GrpcTensorClient):
            inputs = {"NUMBER": np.array([number], np.int32), "STREAM": np.array([True])}
            asked = {"max_tokens": MAX_TOKENS, "temperature": 0}
            async for outputs in self._client.stream(TensorCall("told", inputs, asked), most):
                parts.append(outputs["TEXT"][0].decode())
                await asyncio.sleep(pause_s)
        elif isinstance(self._client, HttpTensorClient):
            async for event in self._client.stream("told", told_fields(number, stream=True), most):
                parts.append(str(event["TEXT"]))
                await asyncio.sleep(pause_s)
        self._check_told(number, "".join(parts), is_part=len(parts) == most)

    def _check_told(self, number: int, text: str, *, is_part: bool = False) -> None:
        wanted = self._undisturbed.told[number]
        if text != wanted and not (is_part and wanted.startswith(text)):
            raise WrongAnswerError(f"{number} is told as {text!r} instead of {wanted!r}")

    def _values(self) -> np.ndarray:
        return np.arange(self._rng.choice((SMALL, LARGE)), dtype=np.float32) + self._rng.randint(0, 99)


def told_fields(number: int, *, stream: bool) -> dict[str, object]:
    asked = {"max_tokens": MAX_TOKENS, "temperature": 0, "exclude_input_in_output": True}
    return {"NUMBER": [number], "STREAM": [stream], **asked}


async def tell(client: HttpTensorClient, number: int) -> str:
    body = json.dumps(told_fields(number, stream=False)).encode()
    return str((await posted(client, "/v2/models/told/generate", body))["TEXT"])


async def embed(client: HttpTensorClient, texts: list[str]) -> list[list[float]]:
    body = json.dumps({"model": "encoder", "input": texts, "encoding_format": "float"}).encode()
    data = (await posted(client, "/v1/embeddings", body))["data"]
    return [one["embedding"] for one in sorted(data, key=lambda one: one["index"])]


async def posted(client: HttpTensorClient, path: str, body: bytes) -> dict[str, Any]:
    status, _, answer = await client.post(path, body, {"content-type": "application/json"})
    if status != 200:
        raise Refused(str(status), answer.decode(errors="replace"))
    found: dict[str, Any] = json.loads(answer)
    return found
