"""Chat and plain completions by tensor models that take and give text."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import openai
import orjson
import pytest

from slipstream.router.api.tensors.models.tensor_arrays import array_of
from slipstream.router.config.endpoints_config import ChatEndpoint, EndpointsConfig
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.model_spec import TensorSpec
from tests.support.router.endpoint_site import computed, endpoint_site, respond, write_word_tokenizer
from tests.support.router.fake_tensor_service import FakeSubmission, FakeTensorService, keep, tensor_model
from tests.support.router.in_loop import in_loop
from tests.support.router.until import until

QUERY = TensorSpec("query", "BYTES", (1,))
RESPONSE = TensorSpec("response", "BYTES", (1,))
HELLO: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "red green blue"}]


def inputs_of(submission: FakeSubmission) -> dict[str, Any]:
    return {tensor.name: array_of(tensor).ravel().tolist() for tensor in submission.request.inputs}


def words(submission: FakeSubmission) -> None:
    """A response for each word of the question, and an end without one."""
    for word in inputs_of(submission)["query"][0].decode().split():
        respond(submission, {"response": [[f"{word} "]]}, is_final=False)
    submission.complete()


def rag(**settings: Any) -> tuple[FakeTensorService, EndpointsConfig]:
    models = FakeTensorService()
    models.add(tensor_model("rag", [QUERY], [RESPONSE], 8, is_decoupled=True), words)
    return models, EndpointsConfig(chat={"rag": ChatEndpoint(**settings)})


@in_loop
async def test_a_chat_is_answered_with_the_texts_of_all_responses() -> None:
    models, config = rag()
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.chat.completions.create(model="rag", messages=HELLO)
        assert answer.choices[0].message.content == "red green blue "
        assert (answer.choices[0].finish_reason, answer.model, answer.object) == ("stop", "rag", "chat.completion")
        assert models.submitted[0].request.inputs[0].shape == (1, 1)


@in_loop
async def test_a_stream_has_a_chunk_for_each_response() -> None:
    models, config = rag()
    async with endpoint_site(models, config) as site, site.client() as client:
        stream = await client.chat.completions.create(
            model="rag", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert [chunk.choices[0].delta.content for chunk in chunks[:3]] == ["red ", "green ", "blue "]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[3].choices[0].finish_reason == "stop"
        assert chunks[4].usage is not None
        assert len({chunk.id for chunk in chunks}) == 1


@in_loop
async def test_a_completion_is_answered_whole_and_streamed() -> None:
    models, config = rag()
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.completions.create(model="rag", prompt="red sea")
        assert (answer.choices[0].text, answer.object) == ("red sea ", "text_completion")
        stream = await client.completions.create(model="rag", prompt=["red sea"], stream=True)
        chunks = [chunk async for chunk in stream]
        assert [chunk.choices[0].text for chunk in chunks] == ["red ", "sea ", ""]
        status, error = await site.error("/v1/completions", {"model": "rag", "prompt": [1, 2]})
        assert (status, error["param"], error["code"]) == (400, "prompt", "unsupported_parameter")


@in_loop
async def test_the_first_words_come_before_the_last_are_known() -> None:
    models, config = rag()
    models.answers["rag"] = keep
    async with endpoint_site(models, config) as site, site.client() as client:
        asking = asyncio.create_task(client.chat.completions.create(model="rag", messages=HELLO, stream=True))
        await until(lambda: bool(models.submitted))
        (submission,) = models.submitted
        respond(submission, {"response": [["one"]]}, is_final=False)
        stream = await asking
        chunks = aiter(stream)
        assert (await anext(chunks)).choices[0].delta.content == "one"
        respond(submission, {"response": [["two"]]}, is_final=True)
        assert [chunk.choices[0].delta.content async for chunk in chunks] == ["two", None]


def llm(**settings: Any) -> tuple[FakeTensorService, EndpointsConfig]:
    """The tensors of a model of the vllm backend."""
    inputs = [
        TensorSpec("text_input", "BYTES", (1,)),
        TensorSpec("stream", "BOOL", (1,), is_optional=True),
        TensorSpec("exclude_input_in_output", "BOOL", (1,), is_optional=True),
        TensorSpec("return_num_input_tokens", "BOOL", (1,), is_optional=True),
        TensorSpec("MAX", "INT32", (1,), is_optional=True),
        TensorSpec("system", "BYTES", (1,), is_optional=True),
    ]
    outputs = [
        TensorSpec("text_output", "BYTES", (-1,)),
        TensorSpec("finish_reason", "BYTES", (-1,)),
        TensorSpec("num_input_tokens", "UINT32", (1,)),
        TensorSpec("num_output_tokens", "UINT32", (-1,)),
    ]

    def answer(submission: FakeSubmission) -> None:
        tokens = {"num_input_tokens": np.array([7]), "num_output_tokens": np.array([2])}
        respond(submission, {"text_output": ["a é".encode()[:3]], **tokens}, is_final=False)
        respond(submission, {"text_output": ["a é".encode()[3:]], "finish_reason": ["length"], **tokens})

    models = FakeTensorService()
    models.add(tensor_model("llm", inputs, outputs, is_decoupled=True), answer)
    return models, EndpointsConfig(chat={"llm": ChatEndpoint(inputs={"max_tokens": "MAX"}, **settings)})


@in_loop
async def test_fields_are_inputs_where_there_is_one_and_else_parameters() -> None:
    models, config = llm()
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.chat.completions.create(
            model="llm", messages=HELLO, max_tokens=5, temperature=0.5, seed=3, stop=["x", "y"]
        )
        request = models.submitted[0].request
        assert request.parameters == {"temperature": 0.5, "seed": 3, "stop": '["x","y"]'}
        assert inputs_of(models.submitted[0]) == {
            "text_input": [b"red green blue"],
            "stream": [False],
            "exclude_input_in_output": [True],
            "return_num_input_tokens": [True],
            "MAX": [5],
            "system": [b"Be brief."],
        }
        assert answer.choices[0].message.content == "a é"  # a letter that two responses have halves of
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 4)
        await client.chat.completions.create(model="llm", messages=HELLO, stop="x", stream=True)
        assert models.submitted[1].request.parameters == {"stop": "x"}
        assert inputs_of(models.submitted[1])["stream"] == [True]


@in_loop
async def test_a_model_that_would_repeat_the_prompt_in_a_whole_answer_is_asked_for_a_stream() -> None:
    models, config = rag()
    stream = TensorSpec("stream", "BOOL", (1,), is_optional=True)
    models.add(tensor_model("rag", [QUERY, stream], [RESPONSE], 8, is_decoupled=True), words)
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.chat.completions.create(model="rag", messages=HELLO)
        assert answer.choices[0].message.content == "red green blue "
        assert inputs_of(models.submitted[0])["stream"] == [True]


@in_loop
async def test_a_model_may_get_all_messages(tmp_path: Path) -> None:
    models, config = rag(prompt="json")
    async with endpoint_site(models, config) as site, site.client() as client:
        await client.chat.completions.create(model="rag", messages=HELLO)
        assert orjson.loads(inputs_of(models.submitted[0])["query"][0]) == HELLO
    write_word_tokenizer(tmp_path, "red", 64)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ mood }}"
    )
    models, config = rag(prompt="template", tokenizer=str(tmp_path))
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.chat.completions.create(model="rag", messages=HELLO)
        assert inputs_of(models.submitted[0])["query"][0] == b"<system>Be brief.<user>red green blue"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > 3  # which the tokenizer counts, as the model does not
        body = {"model": "rag", "messages": HELLO, "chat_template_kwargs": {"mood": "glad"}}
        await site.json("POST", "/v1/chat/completions", body)
        assert inputs_of(models.submitted[1])["query"][0].endswith(b"blueglad")


@pytest.mark.parametrize(
    "field",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"1": 1}},
        {"chat_template_kwargs": {"mood": "glad"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_a_field_that_a_model_of_text_cannot_answer_to_is_refused(field: dict[str, Any]) -> None:
    @in_loop
    async def run() -> None:
        models, config = rag()
        async with endpoint_site(models, config) as site:
            body = {"model": "rag", "messages": HELLO, **field}
            status, error = await site.error("/v1/chat/completions", body)
            assert (status, error["param"], error["code"]) == (400, next(iter(field)), "unsupported_parameter")

    run()


@in_loop
async def test_a_failure_before_the_first_word_has_a_status_and_later_is_an_event() -> None:
    models, config = rag()

    def fail(submission: FakeSubmission) -> None:
        if b"late" in inputs_of(submission)["query"][0]:
            respond(submission, {"response": [["one"]]}, is_final=False)
        submission.fail(InferError("no memory", InferErrorCode.INTERNAL))

    models.answers["rag"] = fail
    async with endpoint_site(models, config) as site, site.client() as client:
        with pytest.raises(openai.InternalServerError, match="no memory"):
            await client.chat.completions.create(model="rag", messages=HELLO, stream=True)
        late: list[Any] = [{"role": "user", "content": "late"}]
        stream = await client.chat.completions.create(model="rag", messages=late, stream=True)
        chunks = aiter(stream)
        assert (await anext(chunks)).choices[0].delta.content == "one"
        with pytest.raises(openai.APIError, match="no memory"):
            await anext(chunks)


@in_loop
async def test_a_client_that_leaves_a_stream_cancels_the_request() -> None:
    models, config = rag()
    models.answers["rag"] = lambda submission: respond(submission, {"response": [["one"]]}, is_final=False)
    async with endpoint_site(models, config) as site, site.client() as client:
        stream = await client.chat.completions.create(model="rag", messages=HELLO, stream=True)
        assert (await anext(aiter(stream))).choices[0].delta.content == "one"
        await stream.close()
        await until(lambda: not models.running)
        assert models.submitted[0].is_cancelled


@in_loop
async def test_a_model_with_one_response_streams_it_as_one_chunk() -> None:
    models = FakeTensorService()
    upper = computed(lambda query: {"response": [[query.ravel()[0].decode().upper()]]})
    models.add(tensor_model("rag", [QUERY], [RESPONSE], 8), upper)
    async with endpoint_site(models, EndpointsConfig(chat={"rag": ChatEndpoint(aliases=("up",))})) as site:
        async with site.client() as client:
            stream = await client.chat.completions.create(model="up", messages=HELLO, stream=True)
            assert [chunk.choices[0].delta.content async for chunk in stream] == ["RED GREEN BLUE", None]
        card = await site.json("GET", "/v1/models/up")
        assert (card["kinds"], card["root"]) == (["chat"], "rag")


@in_loop
async def test_other_names_are_those_of_language_models() -> None:
    models, config = rag()
    async with endpoint_site(models, config) as site:
        status, error = await site.error("/v1/chat/completions", {"model": "other", "messages": HELLO})
        assert (status, error["code"]) == (404, "model_not_found")
        assert error["message"] == "The model 'other' does not exist; this server has 'rag'."
        status, error = await site.error("/v1/responses", {"model": "rag", "input": "hello"})
        assert (status, error["code"]) == (404, "model_not_found")
        assert error["message"].startswith("The model 'rag' does not answer at this path; its 'kinds'")


@in_loop
async def test_a_number_that_an_input_cannot_take_is_the_clients_fault() -> None:
    models = FakeTensorService()
    seed = TensorSpec("seed", "INT32", (1,), is_optional=True)
    models.add(tensor_model("rag", [QUERY, seed], [RESPONSE], 8, is_decoupled=True), words)
    async with endpoint_site(models, EndpointsConfig(chat={"rag": ChatEndpoint()})) as site:
        status, error = await site.error(
            "/v1/chat/completions", {"model": "rag", "messages": HELLO, "seed": 1 << 40, "stream": True}
        )
        assert (status, error["param"], models.submitted) == (400, "seed", [])


@in_loop
async def test_what_a_language_model_behind_it_has_used_is_charged_to_the_key(tmp_path: Path) -> None:
    models, config = rag()

    def by_language_model(submission: FakeSubmission) -> None:
        tokens = submission.request.tokens
        assert tokens is not None
        tokens.num_prompt, tokens.num_cached, tokens.num_output = 4, 1, 3
        words(submission)

    models.answers["rag"] = by_language_model
    keys = tmp_path / "keys.yaml"
    secret = hashlib.sha256(b"few").hexdigest()
    keys.write_text(f"keys: [{{name: few, sha256: {secret}, tokens_per_minute: 6}}]")
    keys.chmod(0o600)
    async with endpoint_site(models, config, keys=keys) as site, site.client("few") as client:
        await client.chat.completions.create(model="rag", messages=HELLO)
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="rag", messages=HELLO)
        (account,) = (await client.get("/usage", cast_to=dict))["data"]
    assert (account["prompt_tokens"], account["completion_tokens"]) == (4, 3)
