"""Models of the backend `vllm`, asked as their users ask them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.aio import InferRequestedOutput
from tritonclient.utils import InferenceServerException

from slipstream.router.infer.served_version import ServedVersion
from slipstream.router.tensors.infer_error import FailureReason, InferError
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, RequestTokens
from slipstream.router.tensors.infer_service import Submission
from slipstream.router.tensors.tensor import Tensor
from tests.support.router.language_lab import (
    LONG,
    TIMEOUT_S,
    LanguageLab,
    language_lab,
    strings,
    texts_of,
    write_language_model,
)
from tests.support.router.until import until

CHAT_LLM = {"model": "demo"}
RETURNS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")


def asked(prompt: str, **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    given = {name: strings(value) if isinstance(value, str) else np.array([value]) for name, value in inputs.items()}
    return {"text_input": strings(prompt), **given}


def test_a_text_is_continued_as_in_the_api_of_openai(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        async with language_lab(tmp_path) as lab:
            assert await lab.client.is_model_ready("chat_llm")
            wanted = (await lab.completion("count", max_tokens=64))["text"]
            assert wanted == LONG
            (whole,) = await lab.infer("chat_llm", asked("count"), {"max_tokens": 64})
            assert texts_of(whole, "text_output") == ["count" + wanted]
            assert await lab.text("chat_llm", "count", {"max_tokens": "64"}) == wanted
            parts = await lab.infer("chat_llm", asked("count", stream=True), {"max_tokens": 64})
            assert len(parts) > 2
            assert "".join(texts_of(part, "text_output")[0] for part in parts) == wanted
            flags = {"stream": True, "max_tokens": 64, "return_finish_reason": "true"}
            by_parameters = await lab.infer("chat_llm", asked("count"), flags)
            assert "".join(texts_of(part, "text_output")[0] for part in by_parameters) == wanted
            assert texts_of(by_parameters[-1], "finish_reason") == ["stop"]
            sampling = json.dumps({"max_tokens": 3, "stop": ["none"], "temperature": "0.5"})
            (short,) = await lab.infer("chat_llm", asked("count", sampling_parameters=sampling))
            assert texts_of(short, "text_output")[0] == "count" + (await lab.completion("count", max_tokens=3))["text"]
            (default,) = await lab.infer("chat_llm", asked("count", exclude_input_in_output=True))
            assert texts_of(default, "text_output")[0] == (await lab.completion("count"))["text"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("inputs", "parameters", "text"),
    [
        (
            {"stream": True, "exclude_input_in_output": False},
            {},
            "Error generating stream: When streaming, `exclude_input_in_output` = False is not allowed.",
        ),
        ({"sampling_parameters": "{"}, {}, "'sampling_parameters' is no JSON"),
        ({"sampling_parameters": "{" + " " * (1 << 20)}, {}, "it has 1048577 bytes; there may be 1048576"),
        ({"sampling_parameters": '{"logprobs": [1]}'}, {}, "parameter 'logprobs' cannot be read, got [1]"),
        ({"sampling_parameters": '{"logprobs": -1}'}, {}, "Invalid value for 'logprobs'"),
        ({}, {"temprature": 1}, "parameter 'temprature' is not served"),
        ({}, {"temperature": "hot"}, "parameter 'temperature' cannot be read, got 'hot'"),
        ({}, {"temperature": 3}, "Invalid value for 'temperature'"),
        ({}, {"lora_name": "poet"}, "LoRA feature is not enabled."),
        ({"image": "aGk="}, {}, "'image' is not served"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    tmp_path: Path, inputs: dict[str, Any], parameters: dict[str, Any], text: str
) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        async with language_lab(tmp_path) as lab:
            with pytest.raises(InferenceServerException) as refused:
                await lab.infer("chat_llm", asked("count", **inputs), parameters)
            assert text in str(refused.value)
            await until(lambda: lab.num_generations == 0)  # the router's own, by which it becomes ready, may still run

    asyncio.run(main())


def test_what_is_to_be_returned_is_returned_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        async with language_lab(tmp_path) as lab:
            flags = {f"return_{name}": True for name in RETURNS}
            plain = asked("count", exclude_input_in_output=True)
            (nothing,) = await lab.infer("chat_llm", plain)
            assert [output.name for output in nothing.get_response().outputs] == ["text_output"]
            (result,) = await lab.infer("chat_llm", {**plain, **asked("count", **flags)}, {"max_tokens": 5})
            assert texts_of(result, "finish_reason") == ["length"]
            assert result.as_numpy("num_output_tokens").tolist() == [5]
            assert texts_of(result, "logprobs") == ["null"]
            usage = (await lab.post("/v1/completions", {"model": "demo", "prompt": "count"}))[1]["usage"]
            assert result.as_numpy("num_input_tokens").tolist() == [usage["prompt_tokens"]]
            parts = await lab.infer("chat_llm", asked("count", stream=True, **flags), {"max_tokens": 5})
            counts = [part.as_numpy("num_output_tokens")[0] for part in parts]
            assert sum(counts) == 5
            assert [texts_of(part, "finish_reason")[0] for part in parts] == ["None"] * (len(parts) - 1) + ["length"]
            given = asked("count", return_finish_reason=True)
            only = await lab.infer("chat_llm", given, outputs=[InferRequestedOutput("text_output")])
            assert [output.name for output in only[0].get_response().outputs] == ["text_output"]

    asyncio.run(main())


def test_a_stop_string_ends_an_output_and_several_outputs_are_one_response(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        async with language_lab(tmp_path) as lab:
            stops = {"stop": "STOP", "max_tokens": 64}
            assert await lab.text("chat_llm", "stop here", stops) == "first part. "
            assert await lab.text("chat_llm", "stop here", stops, stream=True) == "first part. "
            several = {"stop": '["STOP", "part"]', "max_tokens": 64, "include_stop_str_in_output": "true"}
            assert await lab.text("chat_llm", "stop here", several) == "first part"
            (two,) = await lab.infer("chat_llm", asked("say hello"), {"n": 2, "max_tokens": 32})
            assert texts_of(two, "text_output") == ["say hellohello!"] * 2
            parts = await lab.infer("chat_llm", asked("count", stream=True), {"n": 2, "max_tokens": 64})
            columns = zip(*(texts_of(part, "text_output") for part in parts), strict=True)
            assert ["".join(column) for column in columns] == [LONG] * 2
            await until(lambda: lab.num_generations == 0)

    asyncio.run(main())


def test_the_rows_of_a_request_are_prompts(tmp_path: Path) -> None:
    async def main() -> None:
        config = 'backend: "vllm" max_batch_size: 8 instance_group [{ count: 1 kind: KIND_GPU }]'
        write_language_model(tmp_path / "models", "rows", config, CHAT_LLM)
        async with language_lab(tmp_path) as lab:
            inputs = {
                "text_input": strings("say one", "say two").reshape(2, 1),
                "exclude_input_in_output": np.array([[True], [True]]),
                "return_num_input_tokens": np.array([[True], [True]]),
            }
            (result,) = await lab.infer("rows", inputs)
            assert result.as_numpy("text_output").tolist() == [[b"one!"], [b"two!"]]
            assert result.as_numpy("num_input_tokens").shape == (2, 1)

    asyncio.run(main())


def test_metadata_and_configuration_show_what_the_backend_completes(tmp_path: Path) -> None:
    async def main() -> None:
        config = 'backend: "vllm" parameters { key: "max_tokens" value { string_value: "3" } }'
        write_language_model(tmp_path / "models", "chat_llm", config, CHAT_LLM)
        async with language_lab(tmp_path) as lab:
            metadata = await lab.client.get_model_metadata("chat_llm", as_json=True)
            assert [tensor["name"] for tensor in metadata["inputs"]][:3] == ["text_input", "image", "stream"]
            assert [tensor["name"] for tensor in metadata["outputs"]] == ["text_output", *RETURNS]
            answer = await lab.client.get_model_config("chat_llm", as_json=True)
            assert answer["config"]["model_transaction_policy"] == {"decoupled": True}
            wanted = (await lab.completion("count", max_tokens=3))["text"]
            assert await lab.text("chat_llm", "count") == wanted

    asyncio.run(main())


WRONG_TENSORS = {
    'input [{ name: "text_input" data_type: TYPE_INT32 dims: [1] }]': "input 'text_input' must be BYTES, got INT32",
    'input [{ name: "stream" data_type: TYPE_STRING dims: [1] }]': "input 'stream' must be BOOL or INT8",
    'output [{ name: "text_output" data_type: TYPE_FP32 dims: [-1] }]': "output 'text_output' must be BYTES, got FP32",
}


def test_a_tensor_of_a_datatype_that_cannot_be_served_fails_the_load_and_no_request(tmp_path: Path) -> None:
    async def main() -> None:
        for number, tensors in enumerate(WRONG_TENSORS):
            write_language_model(tmp_path / "models", f"wrong_{number}", f'backend: "vllm" {tensors}', CHAT_LLM)
        async with language_lab(tmp_path, exit_on_error=False) as lab:
            index = await lab.client.get_model_repository_index(as_json=True)
            shown = sorted((one["name"], one["state"], one["reason"]) for one in index["models"])
            for number, ((name, state, reason), why) in enumerate(zip(shown, WRONG_TENSORS.values(), strict=True)):
                assert (name, state) == (f"wrong_{number}", "UNAVAILABLE")
                assert f"Invalid argument: {why}" in reason

    asyncio.run(main())


def test_generate_and_generate_stream_answer(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        async with language_lab(tmp_path) as lab:
            body = {"text_input": "count", "parameters": {"stream": False, "max_tokens": 64}}
            status, answer = await lab.post("/v2/models/chat_llm/generate", body)
            assert (status, answer["text_output"]) == (200, "count" + LONG)
            body["parameters"] = {"stream": True, "max_tokens": 64, "temperature": 0}
            status, data = await lab.post_raw("/v2/models/chat_llm/generate_stream", body)
            events = [json.loads(line.removeprefix("data: ")) for line in data.decode().split("\n\n") if line]
            assert status == 200
            assert "".join(event["text_output"] for event in events) == LONG
            status, answer = await lab.post("/v2/models/chat_llm/generate", {"text_input": "x", "top_p": 7})
            assert status == 400
            assert answer["error"].startswith("Error generating stream: Invalid value for 'top_p'")

    asyncio.run(main())


def test_a_client_that_leaves_ends_its_generation(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        async with language_lab(tmp_path, step_s=0.02) as lab:
            never = {"max_tokens": 400, "ignore_eos": True}
            inputs = asked("count", stream=True)
            stream = lab.client.stream_infer(lab.requests("chat_llm", inputs, never))
            version = version_of(lab, "chat_llm")
            await until(lambda: version.num_waiting == 1)
            await anext(stream)
            assert (lab.num_generations, version.num_waiting) == (1, 0)
            stream.cancel()
            await until(lambda: lab.num_generations == 0)
            failures = version.recorder.failures
            await until(lambda: failures[FailureReason.CANCELED] == 1)
            assert lab.router.tensors is not None
            (record, *_) = lab.router.tensors.service.history.latest()
            assert record.outcome == "cancelled"

    asyncio.run(main())


def version_of(lab: LanguageLab, model: str) -> ServedVersion:
    assert lab.router.tensors is not None
    return lab.router.tensors.service.models[model].serving["1"]


def test_requests_are_counted_and_explained(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        async with language_lab(tmp_path) as lab:
            await lab.infer("chat_llm", asked("count"), request_id="mine")
            parts = await lab.infer("chat_llm", asked("count", stream=True))
            answer = await lab.client.get_inference_statistics("chat_llm", as_json=True)
            (statistics,) = answer["model_stats"]
            assert (statistics["inference_count"], statistics["execution_count"]) == ("2", "2")
            assert int(statistics["inference_stats"]["success"]["count"]) == 2
            assert len(statistics["response_stats"]) == len(parts)
            status, page = await lab.get("/metrics")
            assert status == 200
            assert 'nv_inference_request_success{model="chat_llm",version="1"} 2' in page
            status, explained = await lab.get("/v1/requests/mine/explain")
            assert status == 200, explained
            assert "demo" in explained

    asyncio.run(main())


def test_one_that_waits_for_another_model_does_not_hold_it_up(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "first", arguments={"model": "second"})
        write_language_model(tmp_path / "models", "second", arguments=CHAT_LLM)
        async with language_lab(tmp_path, load_threads=1) as lab:
            assert await lab.text("first", "say yes") == "yes!"

    asyncio.run(main())


def test_a_key_of_the_configuration_names_the_model(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm")
        async with language_lab(tmp_path, language_models={"chat_llm": "demo"}) as lab:
            assert await lab.text("chat_llm", "say yes") == "yes!"

    asyncio.run(main())


def test_tokens_count_for_the_limits_and_the_usage_of_a_key(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        keys, secret = tmp_path / "keys.yaml", hashlib.sha256(b"mine").hexdigest()
        keys.write_text(f"keys: [{{name: lab, sha256: {secret}, tenant: lab, tokens_per_minute: 40}}]")
        keys.chmod(0o600)
        body = {"text_input": "count", "parameters": {"max_tokens": 30, "ignore_eos": True}}
        async with language_lab(tmp_path, keys=keys) as lab:
            path = "/v2/models/chat_llm/generate"
            assert (await lab.post_raw(path, body))[0] == 401
            for expected in (200, 200, 429):  # what goes beyond the limit is a debt
                status, answer = await lab.post_raw(path, body, "mine")
                assert status == expected, answer
            _, usage = await lab.get("/v1/usage", "mine")
            (account,) = json.loads(usage)["data"]
            assert (account["model"], account["num_requests"], account["completion_tokens"]) == ("chat_llm", 2, 60)
            assert account["prompt_tokens"] > 0

    asyncio.run(main())


@dataclass
class Reader:
    """ResponseReceiver: leaves after the first response, and notes what was used when the request ends."""

    used: RequestTokens
    submission: Submission | None = None
    num_output_at_end: int | None = None

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        if is_final:
            self.num_output_at_end = self.used.num_output
        elif self.submission is not None:
            asyncio.get_running_loop().call_soon(self.submission.cancel)

    def complete(self) -> None:
        self.num_output_at_end = self.used.num_output

    def fail(self, error: InferError) -> None:
        self.num_output_at_end = self.used.num_output


@pytest.mark.parametrize(("leaves", "num_outputs"), [(False, 1), (False, 3), (True, 1)])
def test_the_tokens_of_a_request_are_known_when_it_ends(tmp_path: Path, leaves: bool, num_outputs: int) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        async with language_lab(tmp_path, step_s=0.01) as lab:
            used = RequestTokens()
            reader = Reader(used)
            assert lab.router.tensors is not None
            inputs = [Tensor("text_input", "BYTES", (1,), b"\5\0\0\0count"), Tensor("stream", "BOOL", (1,), b"\1")]
            parameters = {"max_tokens": 30, "ignore_eos": True, "n": num_outputs}
            request = InferRequest("chat_llm", inputs=inputs, parameters=parameters, tokens=used)
            submission = lab.router.tensors.service.submit(request, reader)
            reader.submission = submission if leaves else None
            await until(lambda: reader.num_output_at_end is not None)
            await until(lambda: lab.num_generations == 0)
            if leaves:
                assert 0 < used.num_output < 30
            else:
                assert reader.num_output_at_end == 30 * num_outputs
            assert reader.num_output_at_end == used.num_output
            assert used.num_prompt > 0

    asyncio.run(main())


@dataclass
class Receiver:
    """ResponseReceiver: how a request has ended."""

    ended: asyncio.Future[InferError | None] = field(default_factory=asyncio.Future)

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        if is_final:
            self.ended.set_result(None)

    def complete(self) -> None:
        self.ended.set_result(None)

    def fail(self, error: InferError) -> None:
        self.ended.set_result(error)


def test_a_router_that_drains_ends_what_runs_and_what_follows_from_it(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments=CHAT_LLM)
        async with language_lab(tmp_path, step_s=0.05) as lab:
            stream = lab.client.stream_infer(lab.requests("chat_llm", asked("count", stream=True), {"max_tokens": 64}))
            first, _ = await anext(stream)
            draining = asyncio.create_task(lab.router.drain(TIMEOUT_S))
            await until(lambda: not lab.router.service.has_workers("demo"))
            with pytest.raises(InferenceServerException, match="Server is stopping"):
                await lab.infer("chat_llm", asked("count"))
            receiver, text = Receiver(), Tensor("text_input", "BYTES", (1,), b"\5\0\0\0count")
            assert lab.router.tensors is not None
            lab.router.tensors.service.submit(InferRequest("chat_llm", inputs=[text], parent_id="parent"), receiver)
            rest = [result async for result, error in stream if error is None]
            assert "".join(texts_of(part, "text_output")[0] for part in (first, *rest)) == LONG
            assert await receiver.ended is None
            await draining

    asyncio.run(main())
