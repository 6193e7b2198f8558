"""Scores pairs of texts by the model of an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from slipstream.router.api.tensors.embeddings.pooling import unit_vectors
from slipstream.router.api.tensors.embeddings.text_vectors import TextVectors
from slipstream.router.api.tensors.models.endpoint_call import EndpointCall, EndpointServer
from slipstream.router.api.tensors.models.endpoint_errors import invalid, misconfigured
from slipstream.router.api.tensors.models.model_caller import ModelCaller, all_of
from slipstream.router.api.tensors.models.model_tensors import NUMBERS, ModelTensors
from slipstream.router.api.tensors.models.tensor_arrays import Array
from slipstream.router.api.tensors.rerank.activation import scores_of
from slipstream.router.api.tensors.text.endpoint_tokenizer import EndpointTokenizers, TokenRow
from slipstream.router.api.tensors.text.text_source import TextSource, text_array
from slipstream.router.api.tensors.text.token_inputs import ROW_AXES, TokenInputs, spans_of
from slipstream.router.config.endpoints_config import EmbeddingsEndpoint, RerankEndpoint
from slipstream.router.tensors.model_spec import TensorSpec

SCORE_OUTPUTS = ("score", "scores", "logits", "relevance_score")
QUERIES = ("text_1", "question")
DOCUMENTS = ("text", "text_2", "passage", "documents")
MAX_PAIRED_CHARS = 1 << 25  # of all pairs of a request

Pair = tuple[str, str]  # query and document


@dataclass(frozen=True, slots=True)
class PairScores:
    """One for all endpoints. Methods raise HttpError."""

    server: EndpointServer
    vectors: TextVectors
    tokenizers: EndpointTokenizers

    async def of(self, call: EndpointCall, pairs: Sequence[Pair], param: str) -> tuple[Array, int]:
        """The score of each pair, and how many tokens they have. `call` is let in."""
        config = cast(RerankEndpoint, call.config)
        if config.embeddings:
            return await self._by_vectors(call, config.embeddings, pairs, param)
        check_size(pairs, param)
        model = call.model()
        source = await TextSource.of(
            self.tokenizers,
            model,
            param,
            folder=config.tokenizer,
            max_tokens=config.max_tokens,
            truncate=config.truncate,
        )
        run = PairRun(call, config, model)
        if run.tokens is None:
            num_tokens = await source.count(pairs)
            call.admit(len(pairs), num_tokens)
            return await run.of_texts(pairs), num_tokens
        rows = await source.rows(pairs)
        num_tokens = sum([len(row.ids) for row in rows])
        call.admit(len(pairs), num_tokens)

        async def part(chosen: Sequence[TokenRow]) -> Array:
            assert run.tokens is not None
            inputs, _ = run.tokens.arrays(chosen, source.pad_id, run.layout)
            return await run.scores(inputs, len(chosen), are_logits=True)

        spans = spans_of(rows, run.layout.num_rows(run.tokens.ids, ROW_AXES))
        return np.concatenate(await all_of([part(rows[begin:end]) for begin, end in spans])), num_tokens

    async def _by_vectors(
        self, call: EndpointCall, embeddings: str, pairs: Sequence[Pair], param: str
    ) -> tuple[Array, int]:
        """How near the vectors are: the cosine of their angle. Each text is computed once."""
        endpoint = self.server.table.get("embeddings", embeddings)
        if endpoint is None:
            raise misconfigured(call.endpoint.title, f"there is no endpoint {embeddings!r} for embeddings")
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        index = {text: position for position, text in enumerate(texts)}
        config = cast(EmbeddingsEndpoint, endpoint.config)
        vectors, num_tokens = await self.vectors.of(call, config, call.model(endpoint), texts, param=param)
        vectors = unit_vectors(vectors)
        first, second = ([index[pair[side]] for pair in pairs] for side in (0, 1))
        scores: Array = (vectors[first] * vectors[second]).sum(axis=1)
        return scores, num_tokens


class PairRun:
    """The calls of a model that takes both texts, for one request."""

    def __init__(self, call: EndpointCall, config: RerankEndpoint, model: ModelCaller) -> None:
        self._config = config
        self._model = model
        self._tensors = call.tensors(model, config.inputs)
        self._output = self._tensors.output(config.output, NUMBERS, SCORE_OUTPUTS)
        self.layout = call.layout(model)
        self.tokens = None if "query" in config.inputs else TokenInputs.of(self._tensors)

    async def of_texts(self, pairs: Sequence[Pair]) -> Array:
        query, document = text_inputs(self._tensors)
        most = self.layout.num_rows(document, 0)

        async def part(begin: int) -> Array:
            chosen = pairs[begin : begin + most]
            inputs = {
                query.name: self._placed(query, [pair[0] for pair in chosen]),
                document.name: self._placed(document, [pair[1] for pair in chosen]),
            }
            return await self.scores(inputs, len(chosen), are_logits=False)

        return np.concatenate(await all_of([part(begin) for begin in range(0, len(pairs), most)]))

    async def scores(self, inputs: dict[str, Array], num_rows: int, *, are_logits: bool) -> Array:
        output = (await self._model.infer(inputs, [self._output.name]))[self._output.name]
        rows = self.layout.rows_of(self._output.name, output, num_rows)
        return scores_of(rows, self._config.activation, are_logits=are_logits)

    def _placed(self, tensor: TensorSpec, texts: Sequence[str]) -> Array:
        """One text is enough for a model that takes a query and many documents."""
        takes_one = not self.layout.spec.max_batch_size and tensor.dims == (1,)
        return self.layout.placed(tensor, text_array(texts[:1] if takes_one else texts))


def check_size(pairs: Sequence[Pair], param: str) -> None:
    """A long query is there once for each document. Raises HttpError 400."""
    num_chars = sum([len(query) + len(document) for query, document in pairs])
    if num_chars > MAX_PAIRED_CHARS:
        problem = f"makes {num_chars} characters, each with its query; there may be {MAX_PAIRED_CHARS}"
        raise invalid(param, problem)


def text_inputs(tensors: ModelTensors) -> tuple[TensorSpec, TensorSpec]:
    """Those of query and document. Raises HttpError."""
    query, document = tensors.text_input("query", QUERIES), tensors.text_input("document", DOCUMENTS)
    if document.name == query.name:
        raise misconfigured(tensors.endpoint, "inputs.query and inputs.document must name two inputs")
    return query, document
