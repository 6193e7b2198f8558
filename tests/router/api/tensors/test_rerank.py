"""`POST /v1/rerank` and `/v1/score` over tensor models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.router.config.endpoints_config import EmbeddingsEndpoint, EndpointsConfig, RerankEndpoint
from slipstream.router.tensors.model_spec import TensorSpec
from tests.support.router.endpoint_site import computed, endpoint_site, write_word_tokenizer
from tests.support.router.fake_tensor_service import FakeTensorService, tensor_model
from tests.support.router.in_loop import in_loop

QUERY = TensorSpec("query", "BYTES", (1,))
DOCUMENT = TensorSpec("document", "BYTES", (1,))
SCORE = TensorSpec("score", "FP32", (1,))
BODY = {"model": "m", "query": "red sea", "documents": ["blue", {"text": "red sea"}, "the red"]}


def common(query: Any, document: Any) -> dict[str, Any]:
    """How many words of the query are in each document."""
    queries = np.broadcast_to(query.ravel(), document.size)
    counts = [len(set(q.split()) & set(d.split())) for q, d in zip(queries, document.ravel(), strict=True)]
    return {"score": np.array(counts, np.float32).reshape(document.shape)}


def of_texts(max_batch_size: int = 2, document: TensorSpec = DOCUMENT) -> tuple[FakeTensorService, EndpointsConfig]:
    models = FakeTensorService()
    score = TensorSpec("score", "FP32", document.dims)
    models.add(tensor_model("m", [QUERY, document], [score], max_batch_size), computed(common))
    return models, EndpointsConfig(rerank={"m": RerankEndpoint()})


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_documents_are_sorted_by_their_scores(path: str) -> None:
    @in_loop
    async def run() -> None:
        models, config = of_texts()
        async with endpoint_site(models, config) as site:
            answer = await site.json("POST", path, BODY)
            assert answer["results"] == [
                {"index": 1, "relevance_score": 2.0, "document": {"text": "red sea"}},
                {"index": 2, "relevance_score": 1.0, "document": {"text": "the red"}},
                {"index": 0, "relevance_score": 0.0, "document": {"text": "blue"}},
            ]
            assert (answer["model"], answer["usage"]["total_tokens"]) == ("m", 0)
            assert [submission.request.inputs[1].shape for submission in models.submitted] == [(2, 1), (1, 1)]

    run()


@in_loop
async def test_the_best_may_be_asked_for_without_their_texts() -> None:
    models, config = of_texts()
    async with endpoint_site(models, config) as site:
        answer = await site.json("POST", "/v1/rerank", {**BODY, "top_n": 1, "return_documents": False})
        assert answer["results"] == [{"index": 1, "relevance_score": 2.0}]


@in_loop
async def test_the_path_of_coheres_second_version_is_no_path_of_kserve() -> None:
    models, config = of_texts()
    async with endpoint_site(models, config) as site:
        answer = await site.json("POST", "/v2/rerank", {**BODY, "max_tokens_per_doc": 4096})
        assert answer["results"][0] == {"index": 1, "relevance_score": 2.0}
        assert answer["meta"]["api_version"] == {"version": "2"}
        assert (await site.error("/v2/rerank", {"model": "m"}))[1]["param"] == "query"


@in_loop
async def test_a_model_may_take_one_query_and_many_documents() -> None:
    models, config = of_texts(0, TensorSpec("document", "BYTES", (-1,)))
    async with endpoint_site(models, config) as site:
        answer = await site.json("POST", "/v1/rerank", BODY)
        assert [one["index"] for one in answer["results"]] == [1, 2, 0]
        assert [tensor.shape for tensor in models.submitted[0].request.inputs] == [(1,), (3,)]


@in_loop
async def test_a_cross_encoder_gets_the_tokens_of_the_pair(tmp_path: Path) -> None:
    write_word_tokenizer(tmp_path, "red sea blue the", max_tokens=8)
    models = FakeTensorService()
    inputs = [TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask", "token_type_ids")]

    def logits(input_ids: Any, attention_mask: Any, token_type_ids: Any) -> dict[str, Any]:
        seconds = ((token_type_ids == 1) & (attention_mask == 1) & (input_ids > 3)).sum(axis=1, keepdims=True)
        return {"logits": seconds.astype(np.float32)}

    models.add(tensor_model("m", inputs, [TensorSpec("logits", "FP32", (1,))], 8), computed(logits))
    config = EndpointsConfig(rerank={"m": RerankEndpoint(tokenizer=str(tmp_path))})
    async with endpoint_site(models, config) as site:
        answer = await site.json("POST", "/v1/rerank", {"model": "m", "query": "red", "documents": ["sea", "the sea"]})
        scores = {one["index"]: one["relevance_score"] for one in answer["results"]}
        assert scores == pytest.approx({0: 1 / (1 + np.exp(-1)), 1: 1 / (1 + np.exp(-2))})
        assert answer["usage"]["prompt_tokens"] == 5 + 6
        long = {"model": "m", "query": "red", "documents": ["sea " * 20]}
        assert (await site.json("POST", "/v1/rerank", long))["usage"]["prompt_tokens"] == 8  # what is too long is cut


@in_loop
async def test_several_classes_are_probabilities_of_the_last() -> None:
    models = FakeTensorService()
    two = TensorSpec("logits", "FP32", (2,))
    answer = computed(lambda query, document: {"logits": np.array([[0.0, np.log(3)]], np.float32)})
    models.add(tensor_model("m", [QUERY, DOCUMENT], [two], 8), answer)
    config = EndpointsConfig(rerank={"m": RerankEndpoint(activation="softmax")})
    async with endpoint_site(models, config) as site:
        found = await site.json("POST", "/v1/rerank", {**BODY, "documents": ["a"]})
        assert found["results"][0]["relevance_score"] == pytest.approx(0.75)


def vectors_of(text: Any) -> dict[str, Any]:
    rows = [[one.count(letter) for letter in b"abc"] for one in text.ravel()]
    return {"embedding": np.array(rows, np.float32)}


@in_loop
async def test_an_encoder_reranks_by_the_angle_of_vectors() -> None:
    models = FakeTensorService()
    text, vector = TensorSpec("text", "BYTES", (1,)), TensorSpec("embedding", "FP32", (3,))
    models.add(tensor_model("e", [text], [vector], 8), computed(vectors_of))
    config = EndpointsConfig(
        embeddings={"e": EmbeddingsEndpoint(normalize=False)}, rerank={"near": RerankEndpoint(embeddings="e")}
    )
    async with endpoint_site(models, config) as site:
        body = {"model": "near", "query": "aab", "documents": ["c", "aabaab", "ab", "c"]}
        answer = await site.json("POST", "/v1/rerank", body)
        assert [one["index"] for one in answer["results"]] == [1, 2, 0, 3]
        assert [one["relevance_score"] for one in answer["results"]] == pytest.approx([1.0, 3 / np.sqrt(10), 0, 0])
        assert models.submitted[0].request.inputs[0].shape == (4, 1)  # each text once
        card = await site.json("GET", "/v1/models/near")
        assert (card["kinds"], card["state"]) == (["rerank"], "serving")


@in_loop
async def test_pairs_are_scored_in_their_order() -> None:
    models, config = of_texts(8)
    async with endpoint_site(models, config) as site:
        answer = await site.json("POST", "/v1/score", {"model": "m", "text_1": "red sea", "text_2": ["red", "red sea"]})
        assert [(one["index"], one["score"]) for one in answer["data"]] == [(0, 1.0), (1, 2.0)]
        both = {"model": "m", "text_1": ["red", "sea"], "text_2": ["sea", "sea"]}
        assert [one["score"] for one in (await site.json("POST", "/score", both))["data"]] == [0.0, 1.0]
        status, error = await site.error("/v1/score", {"model": "m", "text_1": ["a", "b"], "text_2": "a"})
        assert (status, error["param"]) == (400, "text_1")


@in_loop
async def test_a_score_that_is_no_number_is_an_error() -> None:
    models, config = of_texts()
    models.answers["m"] = computed(lambda query, document: {"score": np.full((1, 1), np.nan, np.float32)})
    async with endpoint_site(models, config) as site:
        status, error = await site.error("/v1/rerank", {**BODY, "documents": ["a"]})
        assert (status, error["code"]) == (500, "endpoint_misconfigured")


@in_loop
async def test_a_long_query_for_many_documents_is_refused_before_it_is_copied() -> None:
    models, config = of_texts()
    async with endpoint_site(models, config) as site:
        body = {"model": "m", "query": "x" * (1 << 15), "documents": ["y"] * 1025}
        status, error = await site.error("/v1/rerank", body)
        assert (status, error["param"], models.submitted) == (400, "documents", [])
        status, error = await site.error("/v1/score", {"model": "m", "text_1": "x" * (1 << 15), "text_2": ["y"] * 1025})
        assert (status, error["param"]) == (400, "text_2")
