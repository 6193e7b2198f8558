"""`POST /v1/embeddings` over tensor models."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import openai
import orjson
import pytest

from slipstream.router.api.openai.batches import batch_run, batch_runner
from slipstream.router.config.endpoints_config import EmbeddingsEndpoint, EndpointsConfig
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.model_spec import TensorSpec
from tests.support.router.endpoint_site import Compute, computed, endpoint_site, write_word_tokenizer
from tests.support.router.fake_tensor_service import FakeTensorService, keep, tensor_model
from tests.support.router.in_loop import in_loop
from tests.support.router.until import until

WORDS = "red green blue the colour is of sea"
IDS = TensorSpec("input_ids", "INT64", (-1,))
MASK = TensorSpec("attention_mask", "INT64", (-1,))
STATES = TensorSpec("last_hidden_state", "FP32", (-1, 4))
VECTOR = TensorSpec("embedding", "FP32", (3,))
TEXT = TensorSpec("text", "BYTES", (1,))


def encode(input_ids: Any, attention_mask: Any) -> dict[str, Any]:
    """The state of a token is its id and three numbers; what is filled up has a state that would change a mean."""
    states = np.stack([input_ids, np.ones_like(input_ids), input_ids * 0, input_ids * 0], axis=-1).astype(np.float32)
    return {"last_hidden_state": np.where(attention_mask[..., None] > 0, states, np.float32(1000))}


def encoder(folder: Path, compute: Compute = encode, **settings: Any) -> tuple[FakeTensorService, EndpointsConfig]:
    models = FakeTensorService()
    models.add(tensor_model("encoder", [IDS, MASK], [STATES], max_batch_size=2), computed(compute))
    tokenizer = folder / "tokenizer"
    write_word_tokenizer(tokenizer, WORDS)
    endpoint = EmbeddingsEndpoint("encoder", tokenizer=str(tokenizer), aliases=("alias",), **settings)
    return models, EndpointsConfig(embeddings={"small": endpoint})


def of_text(compute: Compute, max_batch_size: int = 8, **settings: Any) -> tuple[FakeTensorService, EndpointsConfig]:
    models = FakeTensorService()
    models.add(tensor_model("words", [TEXT], [VECTOR], max_batch_size), computed(compute))
    return models, EndpointsConfig(embeddings={"words": EmbeddingsEndpoint(**settings)})


def letters(text: Any) -> dict[str, Any]:
    """How often a, b and c are in each text."""
    rows = [[one.count(letter) for letter in b"abc"] for one in text.ravel()]
    return {"embedding": np.array(rows, np.float32).reshape(*text.shape[:-1], 3)}


@in_loop
async def test_texts_are_tokenised_batched_pooled_and_normalised(tmp_path: Path) -> None:
    models, config = encoder(tmp_path)
    async with endpoint_site(models, config) as site, site.client() as client:
        asked = ["red green", "blue", "the colour of the sea", "red"]
        answer = await client.embeddings.create(model="small", input=asked)
        sizes = [submission.request.inputs[0].shape for submission in models.submitted]
        assert sizes == [(2, 3), (2, 7)]  # those of like length together, at most two rows
        for item, ids in zip(answer.data, ([4, 5], [6], [7, 8, 10, 7, 11], [4]), strict=True):
            mean = np.mean([2, *ids, 3])
            expected = np.array([mean, 1, 0, 0]) / np.hypot(mean, 1)
            assert item.embedding == pytest.approx(expected, rel=1e-5)
        assert [item.index for item in answer.data] == [0, 1, 2, 3]
        assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("small", 17, 17)


@in_loop
async def test_floats_and_base64_are_the_same_numbers(tmp_path: Path) -> None:
    models, config = encoder(tmp_path)
    async with endpoint_site(models, config) as site:
        body = {"model": "alias", "input": "red sea"}
        plain = await site.json("POST", "/v1/embeddings", body)
        coded = await site.json("POST", "/v1/embeddings", {**body, "encoding_format": "base64"})
        decoded = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
        assert np.array_equal(np.array(plain["data"][0]["embedding"], np.float32), decoded)
        assert plain["object"] == "list"
        assert plain["data"][0]["object"] == "embedding"
        assert plain["model"] == "alias"


@in_loop
async def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    models, config = encoder(tmp_path)
    async with endpoint_site(models, config) as site, site.client() as client:
        by_text = await client.embeddings.create(model="small", input="red green")
        for given in ([2, 4, 5, 3], [[2, 4, 5, 3]]):
            by_ids = await client.embeddings.create(model="small", input=given)
            assert by_ids.data[0].embedding == by_text.data[0].embedding
            assert by_ids.usage.prompt_tokens == 4
        status, error = await site.error("/v1/embeddings", {"model": "small", "input": [[2, 99]]})
        assert (status, error["param"]) == (400, "input")
        assert "token id 99; there are 12" in error["message"]


@pytest.mark.parametrize(("pooling", "expected"), [("cls", 2.0), ("last", 3.0), ("max", 5.0), ("mean", 3.5)])
def test_a_pooling_looks_at_tokens_only(tmp_path: Path, pooling: Any, expected: float) -> None:
    @in_loop
    async def run() -> None:
        models, config = encoder(tmp_path, pooling=pooling, normalize=False)
        async with endpoint_site(models, config) as site, site.client() as client:
            answer = await client.embeddings.create(model="small", input=["red green", "the colour of the sea"])
            assert answer.data[0].embedding == pytest.approx([expected, 1, 0, 0])

    run()


@in_loop
async def test_a_text_that_is_too_long_is_refused_or_cut(tmp_path: Path) -> None:
    models, config = encoder(tmp_path)
    text = "red " * 20
    async with endpoint_site(models, config) as site:
        status, error = await site.error("/v1/embeddings", {"model": "small", "input": ["red", text]})
        assert (status, error["code"], error["param"]) == (400, "invalid_value", "input")
        assert "has 22 tokens at index 1; this model takes at most 16" in error["message"]
        status, error = await site.error("/v1/embeddings", {"model": "small", "input": ["red", text * 1000]})
        assert (status, error["code"], error["param"]) == (400, "invalid_value", "input")
        assert "has 80000 characters at index 1; this model takes at most 16 tokens" in error["message"]
    models, config = encoder(tmp_path, truncate=True, max_tokens=5)
    async with endpoint_site(models, config) as site:
        answer = await site.json("POST", "/v1/embeddings", {"model": "small", "input": text})
        assert answer["usage"]["prompt_tokens"] == 5
        ids = np.frombuffer(models.submitted[0].request.inputs[0].view, np.int64)
        assert ids.tolist() == [2, 4, 4, 4, 3]


@in_loop
async def test_a_model_that_takes_text_gets_it() -> None:
    models, config = of_text(letters, max_batch_size=2, normalize=False, prompt="a ")
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.embeddings.create(model="words", input=["ab", "cc", "b"])
        assert [item.embedding for item in answer.data] == [[2, 1, 0], [1, 0, 2], [1, 1, 0]]
        assert answer.usage.prompt_tokens == 0  # nothing is tokenised here
        assert [submission.request.inputs[0].shape for submission in models.submitted] == [(2, 1), (1, 1)]
        status, error = await site.error("/v1/embeddings", {"model": "words", "input": [1, 2]})
        assert (status, error["message"]) == (400, "'input' has token ids, and this model takes text.")


@in_loop
async def test_a_model_that_does_not_batch_gets_one_text_at_a_time() -> None:
    models, config = of_text(letters, max_batch_size=0, normalize=False)
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.embeddings.create(model="words", input=["aab", "c"])
        assert [item.embedding for item in answer.data] == [[2, 1, 0], [0, 0, 1]]
        assert [submission.request.inputs[0].shape for submission in models.submitted] == [(1,), (1,)]


@in_loop
async def test_fewer_dimensions_are_for_models_that_were_trained_for_them() -> None:
    models, config = of_text(letters, matryoshka=True)
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.embeddings.create(model="words", input="aaabbbbc", dimensions=2)
        assert answer.data[0].embedding == pytest.approx([0.6, 0.8])
        status, error = await site.error("/v1/embeddings", {"model": "words", "input": "a", "dimensions": 4})
        assert (status, error["param"]) == (400, "dimensions")
    models, config = of_text(letters)
    async with endpoint_site(models, config) as site:
        status, error = await site.error("/v1/embeddings", {"model": "words", "input": "a", "dimensions": 2})
        assert error["message"] == "'dimensions' must be 3 for this model, got 2."


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "words", "input": ""}, "input"),
        ({"model": "words", "input": []}, "input"),
        ({"model": "words", "input": ["a", ""]}, "input.1"),
        ({"model": "words", "input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"model": "words", "input": "a", "dimensions": 0}, "dimensions"),
        ({"model": "words"}, "input"),
        ({"model": "words", "input": ["a"] * 2049}, "input"),
    ],
)
def test_a_wrong_body_is_a_400_that_names_the_field(body: dict[str, Any], param: str) -> None:
    @in_loop
    async def run() -> None:
        models, config = of_text(letters)
        async with endpoint_site(models, config) as site:
            status, error = await site.error("/v1/embeddings", body)
            assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
            assert not models.submitted

    run()


@in_loop
async def test_a_model_that_fails_is_a_500_with_its_text() -> None:
    def broken(text: Any) -> dict[str, Any]:
        raise ValueError("no weights")

    models, config = of_text(broken)
    async with endpoint_site(models, config) as site:
        status, error = await site.error("/v1/embeddings", {"model": "words", "input": "a"})
        assert (status, error["type"], error["code"]) == (500, "server_error", "model_failed")
        assert error["message"] == "Endpoint 'words' (embeddings): no weights"


@in_loop
async def test_a_model_that_is_not_loaded_is_a_503() -> None:
    models, config = of_text(letters)
    del models.specs["words"]
    async with endpoint_site(models, config) as site:
        status, error = await site.error("/v1/embeddings", {"model": "words", "input": "a"})
        assert (status, error["code"]) == (503, "model_not_ready")


@in_loop
async def test_a_full_queue_is_a_503_that_says_when_to_come_back() -> None:
    models, config = of_text(letters)
    models.answers["words"] = lambda submission: submission.fail(
        InferError("Exceeds maximum queue size", InferErrorCode.UNAVAILABLE)
    )
    async with endpoint_site(models, config) as site:
        status, headers, _ = await site.call("POST", "/v1/embeddings", {"model": "words", "input": "a"})
        assert (status, headers["retry-after"]) == (503, "1")


@in_loop
async def test_an_unknown_name_is_a_404_that_lists_those_of_the_kind() -> None:
    models, config = of_text(letters)
    async with endpoint_site(models, config) as site, site.client() as client:
        with pytest.raises(openai.NotFoundError, match="does not exist for embeddings; this server has 'words'"):
            await client.embeddings.create(model="other", input="a")


@in_loop
async def test_an_output_that_does_not_fit_is_a_fault_of_the_server() -> None:
    models, config = of_text(letters, output="norm")
    async with endpoint_site(models, config) as site:
        status, error = await site.error("/v1/embeddings", {"model": "words", "input": "a"})
        assert (status, error["code"]) == (500, "endpoint_misconfigured")
        assert "has no output 'norm'; it has embedding (FP32 [3])" in error["message"]


@in_loop
async def test_a_client_that_leaves_cancels_the_request_of_the_model() -> None:
    models, config = of_text(letters)
    models.answers["words"] = keep
    async with endpoint_site(models, config) as site, site.client() as client:
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.2).embeddings.create(model="words", input="a")
        await until(lambda: not models.running)
        assert models.submitted[0].is_cancelled


@in_loop
async def test_the_requests_of_one_call_have_its_id(tmp_path: Path) -> None:
    models, config = encoder(tmp_path)
    async with endpoint_site(models, config) as site:
        headers = {"X-Request-Id": "mine"}
        body = {"model": "small", "input": ["red", "blue", "green"]}
        await site.call("POST", "/v1/embeddings", body, headers)
        requests = [submission.request for submission in models.submitted]
        assert [(request.request_id, request.id) for request in requests] == [("mine", ""), ("mine", "mine-2")]
        assert [request.model_version for request in requests] == ["", ""]  # a split of versions may choose


@in_loop
async def test_requests_wait_for_the_models_of_the_start() -> None:
    models, config = of_text(letters)
    loaded, spec = asyncio.Event(), models.specs.pop("words")
    async with endpoint_site(models, config, loaded=loaded) as site, site.client() as client:
        asking = asyncio.create_task(client.embeddings.create(model="words", input="a"))
        await asyncio.sleep(0.05)
        assert not asking.done()
        models.specs["words"] = spec
        loaded.set()
        assert len((await asking).data) == 1


@in_loop
async def test_models_are_listed_with_their_kind(tmp_path: Path) -> None:
    models, config = encoder(tmp_path)
    async with endpoint_site(models, config) as site, site.client() as client:
        cards = {card.id: card async for card in client.models.list()}
        assert list(cards) == ["small", "alias"]
        card = await site.json("GET", "/v1/models/alias")
        assert (card["kinds"], card["root"], card["parent"], card["state"]) == (
            ["embeddings"],
            "small",
            "small",
            "serving",
        )
        del models.specs["encoder"]
        assert (await site.json("GET", "/v1/models/small"))["state"] == "loading"


@in_loop
async def test_what_is_served_is_counted() -> None:
    models, config = of_text(letters)
    async with endpoint_site(models, config) as site:
        await site.json("POST", "/v1/embeddings", {"model": "words", "input": ["a", "b"]})
        await site.error("/v1/embeddings", {"model": "words", "input": [1]})
        _, _, page = await site.call("GET", "/metrics")
        labels = '{endpoint="embeddings",model_name="words"'
        assert f'slipstream:endpoint_requests_total{labels},status="200"}} 1.0' in page.decode()
        assert f'slipstream:endpoint_requests_total{labels},status="400"}} 1.0' in page.decode()
        assert f"slipstream:endpoint_inputs_total{labels}}} 2.0" in page.decode()
        assert f"slipstream:endpoint_request_seconds_count{labels}}} 2.0" in page.decode()


def write_keys(path: Path) -> Path:
    """The secret of each key is its name."""
    settings = {"all": "", "none": "models: [other]", "few": "tokens_per_minute: 6"}
    path.write_text(
        "keys:\n"
        + "".join(
            f"- {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}, {more}}}\n"
            for name, more in settings.items()
        )
    )
    path.chmod(0o600)
    return path


@in_loop
async def test_keys_bound_who_may_use_it_and_how_much(tmp_path: Path) -> None:
    models, config = encoder(tmp_path)
    async with endpoint_site(models, config, keys=write_keys(tmp_path / "keys.yaml")) as site:
        async with site.client("wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.embeddings.create(model="small", input="red")
        async with site.client("none") as client:
            with pytest.raises(openai.PermissionDeniedError):
                await client.embeddings.create(model="small", input="red")
            assert [card.id async for card in client.models.list()] == []
        async with site.client("few") as client:
            await client.embeddings.create(model="small", input="red green blue")
            with pytest.raises(openai.RateLimitError):
                await client.embeddings.create(model="small", input="red green blue")
        async with site.client("all") as client:
            await client.embeddings.create(model="small", input="red")
            usage = await client.get("/usage", cast_to=dict)
        assert [(one["tenant"], one["prompt_tokens"]) for one in usage["data"]] == [("all", 3)]


@in_loop
async def test_a_batch_may_embed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(batch_runner, "LOOK_EVERY_S", 0.02)
    models, config = of_text(letters, normalize=False)
    url = "/v1/embeddings"
    lines = [
        {"custom_id": text, "method": "POST", "url": url, "body": {"model": "words", "input": text}} for text in "abc"
    ]
    async with endpoint_site(models, config, store=tmp_path) as site, site.client() as client:
        text = b"".join(orjson.dumps(one) + b"\n" for one in lines)
        file = await client.files.create(file=("in.jsonl", text), purpose="batch")
        batch = await client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")

        async def is_over() -> bool:
            return (await client.batches.retrieve(batch.id)).status in ("completed", "failed")

        await until(is_over)
        done = (await client.batches.retrieve(batch.id)).output_file_id
        assert done is not None
        answers = [orjson.loads(one) for one in (await client.files.content(done)).text.splitlines()]
        vectors = {one["custom_id"]: one["response"]["body"]["data"][0]["embedding"] for one in answers}
        assert vectors == {"a": [1, 0, 0], "b": [0, 1, 0], "c": [0, 0, 1]}
