"""What users of Triton do with a repository: language models, ensembles, ONNX, policies, versions, metrics."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.http as triton
from conftest import ROOT, ask, free_port, serving
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

CONFIG = """
name: triton-examples-{port}
repository:
  paths: [{folder}]
  control_mode: poll
  poll_s: 0.5
  language_models: {chat_trt: chat_llm, rag_llm: chat_llm}
  versions: {topics: {split: {"1": 90, "2": 10}}}
  endpoints: {embeddings: {encoder: {}}, chat: {rag: {}}}
  grpc: {port: null}
  metrics: {port: {metrics_port}}
router: {http: {port: {port}}}
"""
PROMPT = "def add_numbers(numbers):\n"
LONGEST_WAIT_S = 60.0


@dataclass(frozen=True)
class Examples:
    """`url` is that of the server, `folder` its repository."""

    url: str
    metrics_url: str
    folder: Path

    @property
    def client(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(self.url.removeprefix("http://"), concurrency=32)

    def infer(self, model: str, inputs: Mapping[str, Any], **options: Any) -> triton.InferResult:
        return self.client.infer(model, [tensor(name, value) for name, value in inputs.items()], **options)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    folder = tmp_path_factory.mktemp("examples")
    repository = folder / "repository"
    command = [str(ROOT / ".venv/bin/python"), "-m", "tests.support.clients.example_repository", str(repository)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    metrics_port = free_port()
    config = CONFIG.replace("{folder}", str(repository)).replace("{metrics_port}", str(metrics_port))
    with serving(config, folder) as url:
        wait_until(lambda: triton.InferenceServerClient(url.removeprefix("http://")).is_server_ready())
        yield Examples(url, f"http://127.0.0.1:{metrics_port}/metrics", repository)


def tensor(name: str, value: Any) -> triton.InferInput:
    array = np.asarray(value)
    if array.dtype.kind in "US":
        array = np.vectorize(lambda text: text.encode(), otypes=[object])(array)
    given = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(array)
    return given


def wait_until(is_true: Any) -> None:
    end = time.monotonic() + LONGEST_WAIT_S
    while not is_true():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.1)


def streamed(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of `generate_stream`."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [json.loads(line[6:]) for line in answer if line.startswith(b"data: ")]


def completion(examples: Examples, prompt: Any, **fields: Any) -> str:
    body = {"model": "chat_llm", "prompt": prompt, "temperature": 0, "max_tokens": 12, **fields}
    return str(ask(f"{examples.url}/v1/completions", body)["choices"][0]["text"])


def test_a_language_model_takes_and_gives_text_as_the_other_api_does(examples: Examples) -> None:
    body = {"text_input": PROMPT, "parameters": {"temperature": 0, "max_tokens": 12, "exclude_input_in_output": True}}
    answer = ask(f"{examples.url}/v2/models/chat_llm/generate", body)
    assert answer["text_output"] == completion(examples, PROMPT)
    assert answer["text_output"]


def test_a_language_model_streams_text(examples: Examples) -> None:
    body = {"text_input": PROMPT, "stream": True, "parameters": {"temperature": 0, "max_tokens": 200}}
    events = streamed(f"{examples.url}/v2/models/chat_llm/generate_stream", body)
    assert "".join(event["text_output"] for event in events) == completion(examples, PROMPT, max_tokens=200)
    assert len(events) > 1  # tokens that come at the same time share one


def test_max_tokens_of_the_configuration_is_the_default_of_requests(examples: Examples) -> None:
    body = {"text_input": PROMPT, "return_num_output_tokens": True, "parameters": {"temperature": 0}}
    answer = ask(f"{examples.url}/v2/models/chat_llm/generate", body)
    assert answer["num_output_tokens"] == 8


def test_a_language_model_takes_and_gives_token_ids(examples: Examples) -> None:
    tokens = ask(f"{examples.url}/tokenize", {"model": "chat_llm", "prompt": PROMPT})["tokens"]
    ids = np.array([tokens], np.int32)
    lengths, longest = np.array([[ids.shape[1]]], np.int32), np.array([[12]], np.int32)
    inputs = {"input_ids": ids, "input_lengths": lengths, "request_output_len": longest}
    answer = examples.infer("chat_trt", inputs, outputs=[triton.InferRequestedOutput("output_ids")])
    output = answer.as_numpy("output_ids")
    assert output.dtype == np.int32
    assert output.shape[:2] == (1, 1)
    text = ask(f"{examples.url}/detokenize", {"model": "chat_llm", "tokens": output[0, 0].tolist()})["prompt"]
    assert completion(examples, tokens) in text


def test_a_question_goes_through_all_steps_of_an_ensemble(examples: Examples) -> None:
    body = {"query": "add a list of numbers", "temperature": 0, "max_tokens": 6}
    events = streamed(f"{examples.url}/v2/models/rag/generate_stream", body)
    prompt = "# add a list of numbers: knows 5 words"
    wanted = prompt + completion(examples, prompt, max_tokens=6)  # as vLLM's backend answers what is not streamed
    assert "".join(event["response"] for event in events) == wanted


def test_the_ensemble_answers_a_chat_of_the_client_of_openai(examples: Examples) -> None:
    client = openai.OpenAI(base_url=f"{examples.url}/v1", api_key="none")
    messages: Any = [{"role": "user", "content": "read a file"}]
    chunks = client.chat.completions.create(
        model="rag", messages=messages, stream=True, extra_body={"temperature": 0, "max_tokens": 6}
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert completion(examples, "# read a file: knows 3 words", max_tokens=6) in text


def test_an_encoder_in_onnx_answers_the_client_of_openai(examples: Examples) -> None:
    client = openai.OpenAI(base_url=f"{examples.url}/v1", api_key="none")
    given = client.embeddings.create(model="encoder", input=["add numbers", "sort a list"])
    first, second = (np.array(one.embedding) for one in given.data)
    np.testing.assert_allclose(first[[0, 6]], [0.5**0.5] * 2, rtol=1e-5)
    assert np.flatnonzero(second).tolist() == [2, 3, 7]


def test_requests_side_by_side_share_batches_of_a_preferred_size(examples: Examples) -> None:
    with ThreadPoolExecutor(24) as pool:
        rows = [future.result() for future in [pool.submit(sleeping, examples, "policy", 50) for _ in range(48)]]
    assert max(rows) > 1
    assert max(rows) <= 32


def test_a_request_that_waits_longer_than_it_may_is_refused(examples: Examples) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sleeping, examples, "policy", 1500)
        wait_until(lambda: is_running(examples, "policy"))
        with pytest.raises(InferenceServerException, match="Request timeout expired"):
            sleeping(examples, "policy", 0, timeout=1000)
        running.result()


def test_four_instances_on_the_cpu_are_four_processes(examples: Examples) -> None:
    def pid(_: int) -> int:
        return int(examples.infer("four", {"SLEEP_MS": np.array([[100]], np.int32)}).as_numpy("PID")[0, 0])

    pids: set[int] = set()
    with ThreadPoolExecutor(4) as pool:
        while len(pids) < 4:
            pids.update(pool.map(pid, range(8)))
    assert len(pids) == 4


def test_versions_share_the_requests_that_name_none(examples: Examples) -> None:
    def version() -> str:
        answer = examples.infer("topics", {"TEXT": [["a"]]})
        return str(answer.get_response()["model_version"])

    counts = Counter(version() for _ in range(200))
    assert counts["2"] in range(5, 45)
    assert counts["1"] == 200 - counts["2"]
    named = examples.infer("topics", {"TEXT": [["a"]]}, model_version="2")
    assert named.get_response()["model_version"] == "2"


def test_a_version_that_appears_is_served(examples: Examples) -> None:
    code = (examples.folder / "topics" / "1" / "model.py").read_text()
    (examples.folder / "topics" / "3").mkdir()
    (examples.folder / "topics" / "3" / "model.py").write_text(code)
    wait_until(lambda: examples.client.is_model_ready("topics", "3"))
    [best] = examples.infer(
        "topics", {"TEXT": [["a"]]}, model_version="3", outputs=[triton.InferRequestedOutput("SCORES", class_count=1)]
    ).as_numpy("SCORES")[0]
    assert best == b"0.700000:1:science"


def test_prometheus_finds_the_metrics_of_both_worlds(examples: Examples) -> None:
    completion(examples, PROMPT)
    with urllib.request.urlopen(examples.metrics_url, timeout=10) as page:
        text = page.read().decode()
    for name in (
        "nv_inference_request_success",
        "nv_inference_queue_duration_us",
        "nv_inference_pending_request_count",
    ):
        assert f'{name}{{model="topics",version="1"}}' in text
    assert 'nv_inference_request_success{model="chat_llm",version="1"}' in text
    with urllib.request.urlopen(f"{examples.url}/metrics", timeout=10) as page:
        ours = page.read().decode()
    assert "vllm:time_to_first_token_seconds_bucket" in ours
    assert "nv_inference_count" in ours


def sleeping(examples: Examples, model: str, sleep_ms: int, **options: Any) -> int:
    """How many rows were executed together."""
    answer = examples.infer(model, {"SLEEP_MS": np.array([[sleep_ms]], np.int32)}, **options)
    return int(answer.as_numpy("ROWS")[0, 0])


def is_running(examples: Examples, model: str) -> bool:
    """Something was sent to its instance that has not come back."""
    listed = ask_get(f"{examples.url}/v1/requests?kind=infer&limit=20")
    return any(one["model"] == model and not one.get("ended") for one in listed["data"])


def ask_get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())
