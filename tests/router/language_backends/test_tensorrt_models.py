"""Models of the backend `tensorrtllm`: token ids in and out, or texts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.router.language_lab import (
    LONG,
    LanguageLab,
    language_lab,
    write_language_model,
)

INPUTS = """
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } optional: true },
  { name: "pad_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } optional: true },
  { name: "stop_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true },
  { name: "bad_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true },
  { name: "beam_width" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
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
