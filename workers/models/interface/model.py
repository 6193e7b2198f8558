"""What an engine asks of a model on one rank. All ranks of a group call the same methods with the same batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.workers.models.directory.model_spec import LanguageModelSpec
from slipstream.workers.models.interface.step_batch import StepBatch


class Model(Protocol):
    """What the runner needs of a model: `models.ops_model`, `models.native_model`, `models.general.flat_model`."""

    @property
    def config(self) -> LanguageModelSpec: ...

    @property
    def dtype(self) -> torch.dtype: ...  # of weights and activations

    def scores(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor | None:
        """Computes a step: [n, vocab_size] in float32 for `batch.arrays.sample_rows`. None where there are none, and on
        ranks other than 0. The step's keys and values are written into `kv`, and `layer_done` is called as soon as
        those of a layer are complete."""


@runtime_checkable
class HiddenModel(Model, Protocol):
    """A model whose output layer can be asked for the scores of any rows of a step, some at a time."""

    def forward(self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None) -> Tensor:
        """Computes a step, as `scores` does, up to what the output layer takes: [tokens, hidden_size]. It may be a view
        of memory that the next step overwrites."""

    def logits(self, hidden: Tensor) -> Tensor | None:
        """Scores [n, vocab_size] in float32 of rows [n, hidden_size] of `forward`; None on ranks other than 0. They may
        be a view of memory that the next call overwrites."""


@dataclass(frozen=True, slots=True)
class GreedyTokens:
    """The best token of each row that samples. `is_sound` is false if the highest score is not a finite number. Both
    may be views of memory that the next step overwrites."""

    token_ids: NDArray[np.int32]  # [n]
    is_sound: NDArray[np.bool_]  # [n]


@runtime_checkable
class GreedyModel(Model, Protocol):
    """A model that also picks the best tokens itself."""

    def greedy(
        self, batch: StepBatch, kv: Tensor, layer_done: Callable[[int], None] | None = None
    ) -> GreedyTokens | None:
        """Like `scores` (of at least one row), and then the highest of each row; among equals, that with the lowest
        token id. It is called if every row of a step is plainly greedy, so that nothing else is wanted of the scores.
        None on ranks other than 0."""
