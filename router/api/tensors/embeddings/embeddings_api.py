"""OpenAI's endpoint of embeddings."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.tensors.embeddings.embeddings_request import EmbeddingsRequest
from slipstream.router.api.tensors.embeddings.pooling import unit_vectors
from slipstream.router.api.tensors.embeddings.text_vectors import INLINE_NUMBERS, TextVectors
from slipstream.router.api.tensors.models.endpoint_call import EndpointServer
from slipstream.router.api.tensors.models.endpoint_errors import invalid
from slipstream.router.api.tensors.models.tensor_arrays import Array
from slipstream.router.config.endpoints_config import EmbeddingsEndpoint
from slipstream.router.http.reader import Request

PATH = "/v1/embeddings"


class EmbeddingsApi:
    """Serves the endpoints of its kind."""

    def __init__(self, server: EndpointServer, vectors: TextVectors) -> None:
        self._server = server
        self._vectors = vectors

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoint."""
        routes.add("POST", PATH, self.embeddings, body=EmbeddingsRequest)

    async def embeddings(self, request: Request, exchange: ApiExchange) -> None:
        """A vector for each text."""
        body = self._server.parse(request, exchange, EmbeddingsRequest)
        async with self._server.call("embeddings", body.model, request, exchange) as call:
            config = call.config
            assert isinstance(config, EmbeddingsEndpoint)
            vectors, num_tokens = await self._vectors.of(call, config, call.model(), body.texts, body.id_lists)
            if body.dimensions is not None:
                vectors = shortened(vectors, body.dimensions, config)
            answer = embeddings_answer(body.model, num_tokens)
            is_float = body.encoding_format != "base64"
            if vectors.size <= INLINE_NUMBERS:
                data = with_vectors(answer, vectors, is_float=is_float)
            else:
                data = await asyncio.to_thread(lambda: with_vectors(answer, vectors, is_float=is_float))
            exchange.respond(200, data)


def shortened(vectors: Array, dimensions: int, config: EmbeddingsEndpoint) -> Array:
    """The first numbers of each vector. Raises HttpError 400 if the model was not trained for that."""
    size = vectors.shape[1]
    if dimensions == size:
        return vectors
    if not config.matryoshka or dimensions > size:
        allowed = f"1 to {size}" if config.matryoshka else str(size)
        raise invalid("dimensions", f"must be {allowed} for this model, got {dimensions}")
    cut = vectors[:, :dimensions]
    return unit_vectors(cut) if config.normalize else cut


def embeddings_answer(model: str, num_tokens: int) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [],
        "model": model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def with_vectors(answer: dict[str, Any], vectors: Array, *, is_float: bool) -> bytes:
    """The JSON of the answer with these vectors, as numbers or as base64 of float32, little endian."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    shown = vectors if is_float else [base64.b64encode(vector.tobytes()).decode() for vector in vectors]
    answer["data"] = [
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(shown)
    ]
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
