"""The endpoints that sort documents, and that score pairs of texts."""

from __future__ import annotations

import time
from typing import Any

import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.tensors.models.endpoint_call import EndpointServer
from slipstream.router.api.tensors.models.endpoint_errors import misconfigured
from slipstream.router.api.tensors.rerank.pair_scores import PairScores
from slipstream.router.api.tensors.rerank.rerank_request import RerankRequest, ScoreRequest
from slipstream.router.http.reader import Request

COHERE_V2 = "/v2/rerank"
PATHS = ("/v1/rerank", "/rerank", COHERE_V2)
SCORE_PATHS = ("/v1/score", "/score")


class RerankApi:
    """Serves the endpoints of its kind."""

    def __init__(self, server: EndpointServer, scores: PairScores) -> None:
        self._server = server
        self._scores = scores

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        for path in PATHS:
            routes.add("POST", path, self.rerank, body=RerankRequest)
        for path in SCORE_PATHS:
            routes.add("POST", path, self.score, body=ScoreRequest)

    async def rerank(self, request: Request, exchange: ApiExchange) -> None:
        """The documents by how well they answer the query, the best first."""
        body = self._server.parse(request, exchange, RerankRequest)
        async with self._server.call("rerank", body.model, request, exchange) as call:
            texts = body.texts
            scores, num_tokens = await self._scores.of(call, [(body.query, text) for text in texts], "documents")
            best_first = sorted(range(len(texts)), key=lambda index: -float(scores[index]))
            results: list[dict[str, Any]] = []
            for index in best_first[: body.top_n]:
                result: dict[str, Any] = {"index": index, "relevance_score": finite(call.endpoint.title, scores[index])}
                if body.return_documents is not False and request.path != COHERE_V2:
                    result["document"] = {"text": texts[index]}
                results.append(result)
            answer = {
                "id": f"rerank-{exchange.request_id}",
                "model": body.model,
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
                "results": results,
                "meta": {
                    "api_version": {"version": "2" if request.path == COHERE_V2 else "1"},
                    "billed_units": {"search_units": 1},
                },
            }
            exchange.respond(200, orjson.dumps(answer))

    async def score(self, request: Request, exchange: ApiExchange) -> None:
        """How well each pair of texts fits together, in the order of the request."""
        body = self._server.parse(request, exchange, ScoreRequest)
        async with self._server.call("rerank", body.model, request, exchange) as call:
            scores, num_tokens = await self._scores.of(call, body.pairs, "text_2")
            answer = {
                "id": f"score-{exchange.request_id}",
                "object": "list",
                "created": int(time.time()),
                "model": body.model,
                "data": [
                    {"index": index, "object": "score", "score": finite(call.endpoint.title, score)}
                    for index, score in enumerate(scores)
                ],
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            }
            exchange.respond(200, orjson.dumps(answer))


def finite(endpoint: str, score: float) -> float:
    """Raises HttpError 500 for what JSON cannot say."""
    number = float(score)
    if not -1e308 < number < 1e308:
        raise misconfigured(endpoint, f"the model gave the score {number}")
    return number
