"""The demo model behind both backends: the tokens are those of the API of OpenAI, however they are drawn."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tests.support.router.fake_cluster import MODEL_DIR
from tests.support.router.language_lab import LanguageLab, language_lab, strings, texts_of, write_language_model
from tests.support.router.until import until
from tests.support.workers.worker_process import WorkerProcess

PROMPT = "def is_prime(n):"  # whose function is longer than what is asked for
TOKENS_CONFIG = """
backend: "tensorrtllm" max_batch_size: 4
input [
  { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "runtime_top_k" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true },
  { name: "random_seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true },
  { name: "bad_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true },
  { name: "stop_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true },
  { name: "return_log_probs" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "output_ids" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "cum_log_probs" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "output_log_probs" data_type: TYPE_FP32 dims: [ -1, -1 ] }
]
parameters: { key: "tokenizer_dir" value: { string_value: "demo" } }
parameters: { key: "exclude_input_in_output" value: { string_value: "true" } }
parameters: { key: "max_tokens_in_paged_kv_cache" value: { string_value: "2560" } }
"""


async def tokens(lab: LanguageLab, prompt: list[int], **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs for one prompt and 12 tokens."""
    given = {"input_ids": np.array([prompt], np.int32), "input_lengths": np.array([[len(prompt)]], np.int32)}
    given["request_output_len"] = np.array([[12]], np.int32)
    (result,) = await lab.infer("tensorrt_llm", {**given, **inputs})
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def words(*lists: list[int]) -> np.ndarray[Any, Any]:
    """One row of a list of words."""
    flat = [token_id for one in lists for token_id in one]
    ends = np.cumsum([len(one) for one in lists]).tolist()
    return np.array([[flat, ends + [-1] * (len(flat) - len(ends))]], np.int32)


async def check_texts(lab: LanguageLab) -> None:
    for sampling in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 7, "top_p": 0.9}, {"seed": 3, "top_k": 20}):
        wanted = (await lab.completion(PROMPT, max_tokens=12, **sampling))["text"]
        assert await lab.text("chat_llm", PROMPT, {"max_tokens": 12, **sampling}) == wanted
        assert await lab.text("chat_llm", PROMPT, {"max_tokens": 12, **sampling}, stream=True) == wanted


async def check_logprobs(lab: LanguageLab) -> None:
    body = {"max_tokens": 6, "temperature": 0.0, "logprobs": 2}
    wanted = (await lab.completion(PROMPT, **body))["logprobs"]
    flags = {name: np.array([True]) for name in ("return_logprobs", "return_cumulative_logprob", "stream")}
    flags["return_num_output_tokens"] = np.array([True])
    parts = await lab.infer("chat_llm", {"text_input": strings(PROMPT), **flags}, body)
    entries: list[dict[str, Any]] = []
    for part in parts:
        found = orjson.loads(texts_of(part, "logprobs")[0])
        assert len(found) == part.as_numpy("num_output_tokens")[0]
        entries += found
    assert [next(iter(entry.values()))["logprob"] for entry in entries] == wanted["token_logprobs"]
    for entry in entries:
        assert [one["rank"] for one in entry.values()] == [1, 2]
        assert all(isinstance(one["decoded_token"], str) for one in entry.values())
    total = parts[-1].as_numpy("cumulative_logprob")[0]
    assert math.isclose(total, sum(wanted["token_logprobs"]), rel_tol=1e-5)


async def check_tokens(lab: LanguageLab) -> None:
    _, tokenized = await lab.post("/tokenize", {"model": "demo", "prompt": PROMPT})
    prompt = tokenized["tokens"]
    plain = {"max_tokens": 12, "return_token_ids": True, "detokenize": False}
    greedy = (await lab.completion(prompt, temperature=0.0, **plain))["token_ids"]
    outputs = await tokens(lab, prompt, return_log_probs=np.array([[True]]))
    assert outputs["output_ids"].tolist() == [greedy]
    assert outputs["sequence_length"].tolist() == [[12]]
    assert outputs["output_log_probs"].shape == (1, 1, 12)
    assert math.isclose(outputs["cum_log_probs"].item(), outputs["output_log_probs"].sum(), rel_tol=1e-4)
    drawn = {"top_k": 30, "temperature": 0.5, "seed": 11}
    wanted = (await lab.completion(prompt, top_p=1.0, **drawn, **plain))["token_ids"]
    given = {"runtime_top_k": np.array([[30]], np.int32), "random_seed": np.array([[11]], np.uint64)}
    outputs = await tokens(lab, prompt, temperature=np.array([[0.5]], np.float32), **given)
    assert outputs["output_ids"].tolist() == [wanted]
    second, third = greedy[1], greedy[2]
    outputs = await tokens(lab, prompt, stop_words_list=words([5, 5, 5], [second, third]))
    assert outputs["output_ids"].tolist() == [greedy[:3]]
    outputs = await tokens(lab, prompt, bad_words_list=words([second, third]))
    assert outputs["output_ids"].tolist() != [greedy]
    assert (second, third) not in zip(outputs["output_ids"][0], outputs["output_ids"][0, 1:], strict=False)


def test_the_tokens_are_those_of_the_api_of_openai(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments={"model": "demo", "max_model_len": 512})
        write_language_model(tmp_path / "models", "tensorrt_llm", TOKENS_CONFIG)
        async with language_lab(tmp_path, joins=False) as lab:
            with WorkerProcess(tmp_path, "d0", "decode", MODEL_DIR, lab.addresses.workers.port, model="demo"):
                await until(lambda: lab.router.service.has_workers("demo"))
                await lab.router.wait_loaded()
                await check_texts(lab)
                await check_logprobs(lab)
                await check_tokens(lab)

    asyncio.run(main())
