"""Models of the backend `tensorrtllm`: token ids in and out, or texts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.support.router.language_lab import (
    LONG,
    LanguageLab,
    language_lab,
    write_language_model,
)
from tests.support.router.until import until

INPUTS = """
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } optional: true },
  { name: "pad_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } optional: true },
  { name: "stop_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true },
  { name: "bad_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true },
  { name: "beam_width" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true },
  { name: "runtime_top_k" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } optional: true },
  { name: "random_seed" data_type: TYPE_UINT64 dims: [ 1 ] reshape: { shape: [ ] } optional: true },
  { name: "num_return_sequences" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } optional: true },
  { name: "return_log_probs" data_type: TYPE_BOOL dims: [ 1 ] reshape: { shape: [ ] } optional: true },
  { name: "stop" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
"""
OUTPUTS = """
  { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] },
  { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "cum_log_probs" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "output_log_probs" data_type: TYPE_FP32 dims: [ -1, -1 ] },
  { name: "context_logits" data_type: TYPE_FP32 dims: [ -1, -1 ] },
  { name: "generation_logits" data_type: TYPE_FP32 dims: [ -1, -1, -1 ] },
  { name: "batch_index" data_type: TYPE_INT32 dims: [ 1 ] }
"""


def tokens_config(*, is_decoupled: bool = False, outputs: str = OUTPUTS, **parameters: str) -> str:
    set_to = "".join(
        f'parameters: {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n' for name, value in parameters.items()
    )
    return f"""
backend: "tensorrtllm"
max_batch_size: 8
model_transaction_policy {{ decoupled: {str(is_decoupled).lower()} }}
dynamic_batching {{ preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 100 }}
input [ {INPUTS} ]
output [ {outputs} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters: {{ key: "gpt_model_path" value: {{ string_value: "demo" }} }}
{set_to}"""


def tokens_request(*prompts: list[int], max_tokens: int = 64, **more: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Prompts of equal length are one request."""
    num_rows = len(prompts)
    inputs = {
        "input_ids": np.array(prompts, np.int32),
        "input_lengths": np.full((num_rows, 1), len(prompts[0]), np.int32),
        "request_output_len": np.full((num_rows, 1), max_tokens, np.int32),
    }
    return inputs | {name: np.asarray(value) for name, value in more.items()}


async def ids_of(lab: LanguageLab, text: str) -> list[int]:
    status, answer = await lab.post("/tokenize", {"model": "demo", "prompt": text})
    assert status == 200, answer
    token_ids: list[int] = answer["tokens"]
    return token_ids


async def text_of(lab: LanguageLab, token_ids: list[int]) -> str:
    status, answer = await lab.post("/detokenize", {"model": "demo", "tokens": [int(one) for one in token_ids]})
    assert status == 200, answer
    text: str = answer["prompt"]
    return text


def test_the_tokens_are_those_of_the_api_of_openai(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "tensorrt_llm", tokens_config())
        async with language_lab(tmp_path) as lab:
            prompt = await ids_of(lab, "count")
            wanted = (await lab.completion(prompt, max_tokens=64, return_token_ids=True, detokenize=False))["token_ids"]
            (result,) = await lab.infer("tensorrt_llm", tokens_request(prompt))
            output = result.as_numpy("output_ids")
            num_tokens = result.as_numpy("sequence_length").item()
            assert output.shape == (1, 1, num_tokens)
            assert output[0, 0, : len(prompt)].tolist() == prompt
            answer = output[0, 0, len(prompt) :].tolist()
            assert answer == wanted[: len(answer)]
            assert await text_of(lab, answer) == LONG
            assert result.as_numpy("context_logits").shape == (1, 1, 1)
            assert result.as_numpy("generation_logits").shape == (1, 1, 1, 1)

    asyncio.run(main())


def test_a_stream_has_the_new_tokens_and_needs_a_decoupled_model(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "streams", tokens_config(is_decoupled=True))
        write_language_model(tmp_path / "models", "whole", tokens_config())
        async with language_lab(tmp_path) as lab:
            prompt = await ids_of(lab, "count")
            streaming = tokens_request(prompt, streaming=[[True]])
            parts = await lab.infer("streams", streaming)
            assert len(parts) > 2
            new = [token for part in parts for token in part.as_numpy("output_ids")[0, 0].tolist()]
            assert await text_of(lab, new) == LONG
            assert sum(part.as_numpy("sequence_length").item() for part in parts) == len(new)
            with pytest.raises(InferenceServerException) as refused:
                await lab.infer("whole", streaming)
            assert "Streaming is only supported if model is deployed using decoupled mode." in str(refused.value)

    asyncio.run(main())


def test_rows_and_outputs_of_different_lengths_are_padded(tmp_path: Path) -> None:
    async def main() -> None:
        config = tokens_config(exclude_input_in_output="true")
        write_language_model(tmp_path / "models", "tensorrt_llm", config)
        async with language_lab(tmp_path) as lab:
            short, long = await ids_of(lab, "say no"), await ids_of(lab, "count")
            width = max(len(short), len(long))
            padded = [[*ids, *[0] * (width - len(ids))] for ids in (short, long)]
            inputs = tokens_request(*padded, pad_id=np.full((2, 1), 9, np.int32))
            inputs["input_lengths"] = np.array([[len(short)], [len(long)]], np.int32)
            inputs["num_return_sequences"] = np.full((2, 1), 2, np.int32)
            (result,) = await lab.infer("tensorrt_llm", inputs)
            output, lengths = result.as_numpy("output_ids"), result.as_numpy("sequence_length")
            assert (output.shape[:2], lengths.shape) == ((2, 2), (2, 2))
            for row, text in enumerate(("no!", LONG)):
                for ids, length in zip(output[row], lengths[row], strict=True):
                    assert await text_of(lab, ids[:length].tolist()) == text
                    assert set(ids[length:].tolist()) <= {9}
            assert result.as_numpy("batch_index").tolist() == [[0], [1]]

    asyncio.run(main())


def test_one_output_has_the_shape_that_the_configuration_says(tmp_path: Path) -> None:
    async def main() -> None:
        outputs = '{ name: "output_ids" data_type: TYPE_INT32 dims: [ -1 ] }'
        write_language_model(tmp_path / "models", "chat_llm", tokens_config(outputs=outputs))
        async with language_lab(tmp_path) as lab:
            prompt = await ids_of(lab, "say yes")
            body = {name: (array.tolist(), array.shape) for name, array in tokens_request(prompt).items()}
            inputs = [
                {"name": name, "datatype": "INT32", "shape": shape, "data": data}
                for name, (data, shape) in body.items()
            ]
            status, answer = await lab.post("/v2/models/chat_llm/infer", {"inputs": inputs})
            assert status == 200, answer
            (output,) = answer["outputs"]
            assert output["shape"] == [1, len(output["data"])]
            assert await text_of(lab, output["data"][len(prompt) :]) == "yes!"

    asyncio.run(main())


def test_words_end_an_output_and_ends_can_be_ignored(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "tensorrt_llm", tokens_config(exclude_input_in_output="true"))
        async with language_lab(tmp_path) as lab:
            prompt = await ids_of(lab, "count")
            answer = (await ids_of(lab, LONG))[1:]  # without what begins a text

            async def output_of(**inputs: Any) -> list[int]:
                (result,) = await lab.infer("tensorrt_llm", tokens_request(prompt, **inputs))
                token_ids: list[int] = result.as_numpy("output_ids")[0, 0].tolist()
                return token_ids

            words = np.array([[answer[3:5], [2, -1]]], np.int32)
            assert await output_of(stop_words_list=words) == answer[:5]
            assert await output_of(end_id=np.array([[answer[4]]], np.int32)) == answer[:4]
            assert len(await output_of(end_id=np.array([[-1]], np.int32))) == 64
            with pytest.raises(InferenceServerException, match="'stop_words_list' has a word that ends at 9"):
                await output_of(stop_words_list=np.array([[[1, 2], [9, -1]]], np.int32))
            with pytest.raises(InferenceServerException, match="'temperature' is nan, and must be a finite number"):
                await output_of(temperature=np.array([[np.nan]], np.float32))
            with pytest.raises(
                InferenceServerException, match=r"'input_lengths' is \d+, and 'input_ids' has \d+ tokens"
            ):
                await output_of(input_lengths=np.array([[2**30]], np.int32))
            with pytest.raises(InferenceServerException, match="'request_output_len' must be at least 1, got -1"):
                await output_of(request_output_len=np.array([[-1]], np.int32))
            with pytest.raises(InferenceServerException, match="'input_ids' must have token ids of at least 0, got -5"):
                await output_of(input_ids=np.array([[1] * (len(prompt) - 1) + [-5]], np.int32))
            with pytest.raises(InferenceServerException, match="'input_ids' has no tokens"):
                await output_of(input_lengths=np.array([[0]], np.int32))
            with pytest.raises(InferenceServerException, match="'max_beam_width' is 1"):
                await output_of(beam_width=np.array([[4]], np.int32))

    asyncio.run(main())


def test_a_request_to_stop_ends_the_one_of_the_same_id(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "streams", tokens_config(is_decoupled=True))
        async with language_lab(tmp_path, step_s=0.02) as lab:
            prompt = await ids_of(lab, "count")
            endless = tokens_request(prompt, max_tokens=400, streaming=[[True]], end_id=np.array([[-1]], np.int32))
            running = lab.client.stream_infer(lab.requests("streams", endless, request_id="7"))
            await anext(running)
            other = lab.client.stream_infer(lab.requests("streams", endless, request_id="8"))
            await anext(other)
            assert lab.num_generations == 2
            await lab.infer("streams", tokens_request(prompt, stop=[[True]]), request_id="7")
            await until(lambda: lab.num_generations == 1)
            errors = [error async for _, error in running if error is not None]
            assert "cancelled" in str(errors[-1])
            other.cancel()
            await until(lambda: lab.num_generations == 0)

    asyncio.run(main())


def test_a_model_without_tensors_in_its_configuration_takes_texts(tmp_path: Path) -> None:
    async def main() -> None:
        config = """backend: "tensorrtllm" model_transaction_policy { decoupled: true }
            parameters { key: "gpt_model_path" value { string_value: "demo" } }
            parameters { key: "exclude_input_in_output" value { string_value: "true" } }
            parameters { key: "decoding_mode" value { string_value: "${decoding_mode}" } }
            parameters { key: "batching_strategy" value { string_value: "inflight_fused_batching" } }"""
        write_language_model(tmp_path / "models", "texts", config)
        async with language_lab(tmp_path) as lab:
            body: dict[str, Any] = {"text_input": "stop here", "max_tokens": 64, "stop_words": "STOP", "bad_words": ""}
            status, answer = await lab.post("/v2/models/texts/generate", body)
            assert (status, answer["text_output"]) == (200, "first part. STOP")
            status, data = await lab.post_raw("/v2/models/texts/generate_stream", {**body, "stream": True})
            events = [json.loads(line.removeprefix("data: ")) for line in data.decode().split("\n\n") if line]
            assert "".join(event["text_output"] for event in events) == "first part. STOP"

    asyncio.run(main())
