"""Makes vectors of texts by the model of an endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from slipstream.router.api.tensors.embeddings.pooling import pooled, unit_vectors
from slipstream.router.api.tensors.models.endpoint_call import EndpointCall
from slipstream.router.api.tensors.models.endpoint_errors import invalid, misconfigured
from slipstream.router.api.tensors.models.model_caller import ModelCaller, all_of
from slipstream.router.api.tensors.models.model_tensors import NUMBERS
from slipstream.router.api.tensors.models.row_layout import RowLayout
from slipstream.router.api.tensors.models.tensor_arrays import Array
from slipstream.router.api.tensors.text.endpoint_tokenizer import EndpointTokenizers, TokenRow
from slipstream.router.api.tensors.text.text_source import TextSource, text_array
from slipstream.router.api.tensors.text.token_inputs import ROW_AXES, TokenInputs, spans_of
from slipstream.router.config.endpoints_config import EmbeddingsEndpoint
from slipstream.router.tensors.model_spec import TensorSpec

SENTENCE_OUTPUTS = ("sentence_embedding", "embedding", "embeddings", "last_hidden_state", "token_embeddings")
TEXT_INPUTS = ("texts", "text_input", "sentence", "query", "input")
INLINE_NUMBERS = 1 << 16  # of an output are pooled on the event loop


class TextVectors:
    """One for all endpoints. Methods raise HttpError."""

    def __init__(self, tokenizers: EndpointTokenizers) -> None:
        self._tokenizers = tokenizers

    async def of(
        self,
        call: EndpointCall,
        config: EmbeddingsEndpoint,
        model: ModelCaller,
        texts: Sequence[str],
        id_lists: Sequence[list[int]] = (),
        param: str = "input",
    ) -> tuple[Array, int]:
        """The vectors [texts, size] of texts, or of token ids, and how many tokens they have. `call` is let in."""
        run = EncoderRun(call, config, model)
        source = await TextSource.of(
            self._tokenizers,
            model,
            param,
            folder=config.tokenizer,
            max_tokens=config.max_tokens,
            truncate=config.truncate,
        )
        texts = [config.prompt + text for text in texts] if config.prompt else texts
        tokens = run.tokens
        if tokens is None:
            if id_lists:
                raise invalid(param, "has token ids, and this model takes text")
            num_tokens = await source.count(texts)
            call.admit(len(texts), num_tokens)
            return await run.of_texts(texts), num_tokens
        rows = await source.rows(texts) if texts else source.rows_of_ids(id_lists)
        num_tokens = sum([len(row.ids) for row in rows])
        call.admit(len(rows), num_tokens)
        return await run.of_tokens(tokens, rows, source.pad_id), num_tokens


class EncoderRun:
    """The calls of the model for one request."""

    def __init__(self, call: EndpointCall, config: EmbeddingsEndpoint, model: ModelCaller) -> None:
        self._config = config
        self._model = model
        self._tensors = call.tensors(model, config.inputs)
        self._layout: RowLayout = call.layout(model)
        self._output: TensorSpec = self._tensors.output(config.output, NUMBERS, SENTENCE_OUTPUTS)
        self.tokens = TokenInputs.of(self._tensors)

    async def of_texts(self, texts: Sequence[str]) -> Array:
        given = self._tensors.text_input("text", TEXT_INPUTS)
        most = self._layout.num_rows(given, 0)

        async def part(begin: int) -> Array:
            rows = text_array(texts[begin : begin + most])
            outputs = await self._model.infer({given.name: self._layout.placed(given, rows)}, [self._output.name])
            return await self._vectors(outputs[self._output.name], len(rows), None)

        return np.concatenate(await all_of([part(begin) for begin in range(0, len(texts), most)]))

    async def of_tokens(self, tokens: TokenInputs, rows: Sequence[TokenRow], pad_id: int) -> Array:
        """Rows of like length are computed together, so that little is filled up."""
        order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
        most = self._layout.num_rows(tokens.ids, ROW_AXES)

        async def part(chosen: Sequence[TokenRow]) -> Array:
            inputs, mask = tokens.arrays(chosen, pad_id, self._layout)
            outputs = await self._model.infer(inputs, [self._output.name])
            return await self._vectors(outputs[self._output.name], len(chosen), mask)

        in_turn = [rows[index] for index in order]
        parts = [part(in_turn[begin:end]) for begin, end in spans_of(in_turn, most)]
        vectors = np.concatenate(await all_of(parts))
        in_order = np.empty_like(vectors)
        in_order[order] = vectors
        return in_order

    async def _vectors(self, output: Array, num_rows: int, mask: Array | None) -> Array:
        states = self._layout.rows_of(self._output.name, output, num_rows)
        try:
            if states.size <= INLINE_NUMBERS:
                return self._finished(states, mask)
            return await asyncio.to_thread(self._finished, states, mask)
        except ValueError as error:
            raise misconfigured(self._model.endpoint, f"output {self._output.name!r} {error}") from error

    def _finished(self, states: Array, mask: Array | None) -> Array:
        vectors = pooled(states, mask, self._config.pooling)
        return unit_vectors(vectors) if self._config.normalize else vectors
