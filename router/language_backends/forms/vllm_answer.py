"""The outputs of the backend `vllm` as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from slipstream.router.api.generation.answer.token_names import finite, token_name
from slipstream.router.api.generation.generation_batch import GenerationBatch
from slipstream.router.language_backends.forms.output_tensors import numbers_tensor, texts_tensor
from slipstream.router.language_backends.generation.output_part import Grid, OutputPart
from slipstream.router.protocol.messages import TokenLogprob
from slipstream.router.tensors.tensor import Tensor
from slipstream.router.text.detokenizer import PieceTable

NO_REASON = "None"  # of an output that goes on
NO_LOGPROBS = "null"


@dataclass(frozen=True, slots=True)
class VllmAnswer:
    """ResponseWriter. `prefixes` stand before the texts of each row. `returned` are the further outputs, by name.
    `num_top` is how many of the best tokens are listed beside each, None: no log-probabilities were asked for."""

    prefixes: Sequence[str]
    returned: frozenset[str]
    has_text: bool
    is_batched: bool
    num_top: int | None

    def shows(self, grid: Grid) -> bool:
        return bool(self.returned) or any(part.text or part.reason for parts in grid for part in parts)

    def outputs(self, grid: Grid, batches: Sequence[GenerationBatch]) -> list[Tensor]:
        num_outputs = len(grid[0])
        shape = (len(grid), num_outputs) if self.is_batched else (num_outputs,)
        parts = [part for row in grid for part in row]
        tensors = []
        if self.has_text:
            texts = [prefix + part.text for prefix, row in zip(self.prefixes, grid, strict=True) for part in row]
            tensors.append(texts_tensor("text_output", shape, texts))
        if "finish_reason" in self.returned:
            tensors.append(texts_tensor("finish_reason", shape, [part.reason or NO_REASON for part in parts]))
        if "cumulative_logprob" in self.returned:
            totals = [part.total_logprob for part in parts]
            tensors.append(numbers_tensor("cumulative_logprob", "FP32", shape, totals))
        if "logprobs" in self.returned:
            pieces = batches[0].pieces
            tensors.append(texts_tensor("logprobs", shape, [self._logprobs(part, pieces) for part in parts]))
        if "num_input_tokens" in self.returned:
            counts = [batch.num_prompt_tokens for batch in batches]
            tensors.append(numbers_tensor("num_input_tokens", "UINT32", (*shape[:-1], 1), counts))
        if "num_output_tokens" in self.returned:
            tensors.append(numbers_tensor("num_output_tokens", "UINT32", shape, [len(part.tokens) for part in parts]))
        return tensors

    def _logprobs(self, part: OutputPart, pieces: PieceTable) -> str | bytes:
        if self.num_top is None:
            return NO_LOGPROBS
        return orjson.dumps(
            [
                {str(token): entry for token, entry in entries_of(token_id, logprob, self.num_top, pieces)}
                for token_id, logprob in part.tokens
                if logprob is not None
            ]
        )


def entries_of(
    token_id: int, logprob: TokenLogprob, num_top: int, pieces: PieceTable
) -> list[tuple[int, dict[str, Any]]]:
    """A token and the `num_top` best ones in its place. The rank of one that is not among the best that are known is
    the least that it can have."""
    best = [other for other, _ in logprob.top]
    rank = best.index(token_id) + 1 if token_id in best else len(best) + 1
    entries = [(token_id, logprob.logprob, rank)]
    for index, (other, value) in enumerate(logprob.top[:num_top]):
        if other != token_id:
            entries.append((other, value, index + 1))
    return [
        (token, {"logprob": finite(value), "rank": rank, "decoded_token": token_name(pieces.bytes_of(token))})
        for token, value, rank in entries
    ]
