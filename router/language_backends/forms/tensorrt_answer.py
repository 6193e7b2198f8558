"""The outputs of the backend `tensorrtllm` as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.router.api.generation.generation_batch import GenerationBatch
from slipstream.router.language_backends.forms.output_tensors import Shape, numbers_tensor, texts_tensor
from slipstream.router.language_backends.generation.output_part import Grid, OutputPart
from slipstream.router.tensors.model_spec import ModelSpec
from slipstream.router.tensors.tensor import Tensor

LOGITS = {"context_logits": 1, "generation_logits": 2}  # dimensions beside those of rows and outputs


@dataclass(slots=True)
class TensorRtAnswer:
    """ResponseWriter. Each of the `outputs`, by name, is in every response, because ensembles wait for them: what was
    not asked for is zeros. `prefixes` stand before the outputs of each row: tokens or text. Shapes have as many
    dimensions as the configuration says."""

    spec: ModelSpec
    names: frozenset[str]
    prefixes: Sequence[Any]
    pad_id: int
    _num_dims: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._num_dims = {tensor.name: len(tensor.dims) for tensor in self.spec.outputs}

    def shows(self, grid: Grid) -> bool:
        return any(part.text or part.reason or part.tokens for row in grid for part in row)

    def outputs(self, grid: Grid, batches: Sequence[GenerationBatch]) -> list[Tensor]:
        makers = {
            "text_output": self._texts,
            "output_ids": self._token_ids,
            "sequence_length": self._lengths,
            "cum_log_probs": self._totals,
            "output_log_probs": self._logprobs,
            "batch_index": self._row_numbers,
            "sequence_index": self._output_numbers,
        }
        tensors = [make(name, grid) for name, make in makers.items() if name in self.names]
        for name, num_more in LOGITS.items():
            if name in self.names:
                shape = self._shape(name, grid, *(1 for _ in range(num_more)))
                tensors.append(numbers_tensor(name, "FP32", shape, [0.0] * len(grid) * len(grid[0])))
        return tensors

    def _texts(self, name: str, grid: Grid) -> Tensor:
        texts = [prefix + part.text for prefix, row in zip(self.prefixes, grid, strict=True) for part in row]
        return texts_tensor(name, self._shape(name, grid), texts)

    def _token_ids(self, name: str, grid: Grid) -> Tensor:
        outputs = self._sequences(grid)
        longest = max(map(len, outputs))
        padded = [token_id for ids in outputs for token_id in (*ids, *[self.pad_id] * (longest - len(ids)))]
        return numbers_tensor(name, "INT32", self._shape(name, grid, longest), padded)

    def _lengths(self, name: str, grid: Grid) -> Tensor:
        return numbers_tensor(name, "INT32", self._shape(name, grid), list(map(len, self._sequences(grid))))

    def _totals(self, name: str, grid: Grid) -> Tensor:
        totals = [part.total_logprob for row in grid for part in row]
        return numbers_tensor(name, "FP32", self._shape(name, grid), totals)

    def _logprobs(self, name: str, grid: Grid) -> Tensor:
        outputs = [logprobs_of(part) for row in grid for part in row]
        longest = max(map(len, outputs))
        padded = [value for values in outputs for value in (*values, *[0.0] * (longest - len(values)))]
        return numbers_tensor(name, "FP32", self._shape(name, grid, longest), padded)

    def _row_numbers(self, name: str, grid: Grid) -> Tensor:
        return numbers_tensor(name, "INT32", (*self._rows(grid), 1), list(range(len(grid))))

    def _output_numbers(self, name: str, grid: Grid) -> Tensor:
        numbers = [number for row in grid for number in range(len(row))]
        return numbers_tensor(name, "INT32", (*self._rows(grid), len(grid[0])), numbers)

    def _sequences(self, grid: Grid) -> list[list[int]]:
        pairs = zip(self.prefixes, grid, strict=True)
        return [[*prefix, *part.token_ids] for prefix, row in pairs for part in row]

    def _shape(self, name: str, grid: Grid, *more: int) -> Shape:
        """Rows, outputs and what follows; without the dimension of a single output where the configuration has none."""
        rows, num_outputs = self._rows(grid), len(grid[0])
        if len(more) + 1 > self._num_dims[name] and num_outputs == 1:
            return (*rows, *more) if more else (*rows, 1)
        return (*rows, num_outputs, *more)

    def _rows(self, grid: Grid) -> Shape:
        return (len(grid),) if self.spec.max_batch_size else ()


def logprobs_of(part: OutputPart) -> list[float]:
    """One for each token of the output."""
    tokens = part.tokens[:-1] if part.hides_end else part.tokens
    return [0.0 if logprob is None else logprob.logprob for _, logprob in tokens]
