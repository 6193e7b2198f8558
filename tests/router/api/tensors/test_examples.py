"""Endpoints of OpenAI's shape over models in processes of their own, with OpenAI's own client."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openai
import orjson
import pytest

from scripts.tensor_examples.main import HERE, TOKENIZER
from scripts.tensor_examples.onnx_encoder import write_encoder
from slipstream.router.config.endpoints_config import (
    ChatEndpoint,
    EmbeddingsEndpoint,
    EndpointsConfig,
    ImagesEndpoint,
    RerankEndpoint,
    TranscriptionsEndpoint,
)
from tests.router.api.tensors.test_transcriptions import wav
from tests.support.router.in_loop import in_loop
from tests.support.router.language_lab import CHAT, LanguageLab, language_lab, write_language_model

RATE = 16_000
TONES = {"1": (697, 1209), "2": (697, 1336), "5": (770, 1336), "0": (941, 1336)}


def client_of(lab: LanguageLab) -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{lab.addresses.http.port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


def dialled(keys: str) -> np.ndarray:
    """Each key for 100 ms, and 100 ms of silence; a space is half a second of it."""
    parts = []
    for key in keys:
        if key == " ":
            parts.append(np.zeros(RATE // 2))
            continue
        times = np.arange(RATE // 10) / RATE
        parts += [sum(0.3 * np.sin(2 * np.pi * hertz * times) for hertz in TONES[key]), np.zeros(RATE // 10)]
    return np.concatenate(parts).astype(np.float32)


def test_an_encoder_in_onnx_embeds_and_reranks(tmp_path: Path) -> None:
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)

    @in_loop
    async def run() -> None:
        write_encoder(tmp_path / "models" / "encoder", TOKENIZER)
        endpoints = EndpointsConfig(
            embeddings={"encoder": EmbeddingsEndpoint()}, rerank={"reranker": RerankEndpoint(embeddings="encoder")}
        )
        async with (
            language_lab(tmp_path, sources=[], joins=False, has_instances=True, endpoints=endpoints) as lab,
            client_of(lab) as client,
        ):
            texts = ["The cat sat on the mat.", "A cat sat upon a mat.", "Prices rose by five percent in March."]
            answer = await client.embeddings.create(model="encoder", input=texts)
            first, second, third = (np.array(item.embedding) for item in answer.data)
            assert np.linalg.norm(first) == pytest.approx(1, abs=1e-5)
            assert first @ second > first @ third + 0.2
            assert answer.usage.prompt_tokens > 20
            ids = await client.embeddings.create(model="encoder", input=[[1, 300, 301], [1, 300, 301, 302]])
            assert ids.usage.prompt_tokens == 7
            body = {"model": "reranker", "query": texts[0], "documents": texts[1:]}
            status, ranked = await lab.post("/v1/rerank", body)
            assert (status, [one["index"] for one in ranked["results"]]) == (200, [0, 1])
            _, listed = await lab.get("/v1/models")
            assert {card["id"]: card["kinds"] for card in orjson.loads(listed)["data"]} == {
                "encoder": ["embeddings"],
                "reranker": ["rerank"],
            }
            _, explained = await lab.get("/v1/requests?kind=infer&limit=1")
            assert orjson.loads(explained)["data"][0]["model"] == "encoder"

    run()


@in_loop
async def test_a_speech_model_streams_what_it_hears(tmp_path: Path) -> None:
    shutil.copytree(HERE / "repository" / "keypad", tmp_path / "models" / "keypad")
    endpoints = EndpointsConfig(transcriptions={"keypad": TranscriptionsEndpoint(aliases=("whisper-1",))})
    async with (
        language_lab(tmp_path, sources=[], joins=False, has_instances=True, endpoints=endpoints) as lab,
        client_of(lab) as client,
    ):
        file = ("call.wav", wav(dialled("12 500 1")))
        create = client.audio.transcriptions.create
        assert (await create(model="whisper-1", file=file)).text == "12 500 1"
        stream = await create(model="keypad", file=file, stream=True)
        events = [event async for event in stream]
        assert [event.delta for event in events if event.type == "transcript.text.delta"] == ["12", " 500", " 1"]
        verbose = await create(model="keypad", file=file, response_format="verbose_json")
        assert verbose.segments is not None
        assert [one.start for one in verbose.segments] == pytest.approx([0, 0.9, 2.0], abs=0.05)
        assert await create(model="keypad", file=file, response_format="srt") != ""


PROMPT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            query = pb_utils.get_input_tensor_by_name(request, "query").as_numpy()[0].decode()
            prompt = np.array([f"{query}: count".encode()], object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("prompt", prompt)]))
        return answers
"""
PROMPT_CONFIG = """
backend: "python" max_batch_size: 0
input [ { name: "query" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
RAG_CONFIG = """
platform: "ensemble" max_batch_size: 0
input [
  { name: "query" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [ { name: "response" data_type: TYPE_STRING dims: [ -1 ] } ]
model_transaction_policy { decoupled: true }
ensemble_scheduling { step [
  {
    model_name: "prompt" model_version: -1
    input_map { key: "query" value: "query" } output_map { key: "prompt" value: "prompt" }
  },
  {
    model_name: "llm" model_version: -1
    input_map { key: "text_input" value: "prompt" }
    input_map { key: "stream" value: "stream" }
    input_map { key: "exclude_input_in_output" value: "exclude_input_in_output" }
    output_map { key: "text_output" value: "response" }
  }
] }
"""


@in_loop
async def test_an_ensemble_that_ends_in_a_language_model_chats_as_it_generates(tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "prompt" / "1").mkdir(parents=True)
    (models / "prompt" / "config.pbtxt").write_text(PROMPT_CONFIG)
    (models / "prompt" / "1" / "model.py").write_text(PROMPT)
    (models / "rag" / "1").mkdir(parents=True)
    (models / "rag" / "config.pbtxt").write_text(RAG_CONFIG)
    write_language_model(models, "llm", arguments={"model": CHAT})
    endpoints = EndpointsConfig(chat={"rag": ChatEndpoint()})
    async with (
        language_lab(tmp_path, has_instances=True, endpoints=endpoints, language_models={"llm": CHAT}) as lab,
        client_of(lab) as client,
    ):
        asked: list[Any] = [{"role": "user", "content": "what is known"}]
        whole = await client.chat.completions.create(model="rag", messages=asked, max_tokens=40)
        assert whole.choices[0].message.content == "one two three four five six seven eight nine ten"
        stream = await client.chat.completions.create(model="rag", messages=asked, max_tokens=40, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        body = {"query": "what is known", "stream": True, "exclude_input_in_output": True, "max_tokens": 40}
        status, raw = await lab.post_raw("/v2/models/rag/generate_stream", body)
        events = [orjson.loads(event.removeprefix(b"data: ")) for event in raw.split(b"\n\n") if event]
        generated = [event["response"] for event in events]
        assert status == 200
        assert "".join(pieces) == "".join(generated) == whole.choices[0].message.content
        assert len([piece for piece in pieces if piece]) > 3
        completion = await client.completions.create(model="rag", prompt="what is known", max_tokens=3)
        assert whole.choices[0].message.content.startswith(completion.choices[0].text)
        assert len(completion.choices[0].text) < 20
        models_listed = {card.id async for card in client.models.list()}
        assert {"rag", CHAT} <= models_listed


@pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="diffusers is not installed")
def test_a_pipeline_of_diffusers_paints(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        shutil.copytree(HERE / "repository" / "painter", tmp_path / "models" / "painter")
        endpoints = EndpointsConfig(images={"painter": ImagesEndpoint()})
        async with (
            language_lab(tmp_path, sources=[], joins=False, has_instances=True, endpoints=endpoints) as lab,
            client_of(lab) as client,
        ):
            await lab.router.wait_loaded()
            fields = {"seed": 3, "steps": 2}
            first, again = [
                await client.images.generate(model="painter", prompt="a cat", n=2, extra_body=fields) for _ in range(2)
            ]
            assert first.data is not None
            assert again.data is not None
            assert [one.b64_json for one in first.data] == [one.b64_json for one in again.data]
            assert first.data[0].b64_json != first.data[1].b64_json

    run()
