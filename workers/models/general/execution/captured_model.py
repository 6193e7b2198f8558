"""A general model as a graph of native calls: no module of transformers runs in a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from slipstream.kernels.cpu.native_rows import best_of_rows
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.graph.kernel_calls import AttentionOfStep, Kernels, bind
from slipstream.workers.models.general.graph.program import compiled
from slipstream.workers.models.general.graph.step_graph import StepGraph
from slipstream.workers.models.interface.model import GreedyTokens
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

LayerDone = Callable[[int], None]


class StepAttention(AttentionOfStep, Protocol):
    """`general.attention.flat_attention`."""

    def step(self, batch: StepBatch, kv: Tensor, layer_done: LayerDone | None) -> AbstractContextManager[None]: ...


class CapturedModel:
    """A `GreedyModel` on one rank that is alone. It holds none of the modules that it was made from."""

    def __init__(
        self, spec: GeneralSpec, dtype: torch.dtype, graph: StepGraph, attention: StepAttention, library: ctypes.CDLL
    ) -> None:
        """`graph`, whose constants have values, is not usable afterwards."""
        bind(graph.nodes, Kernels(library, attention))
        self.spec = spec
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.tp = TensorParallel()
        self._program = compiled(graph)
        self._attention = attention
        self._library = library

    @property
    def config(self) -> GeneralSpec:
        return self.spec

    @torch.inference_mode()
    def scores(self, batch: StepBatch, kv: Tensor, layer_done: LayerDone | None = None) -> Tensor | None:
        """Computes a step, as `FlatModel.scores` does."""
        rows = batch.sample_indices
        kept = rows if len(rows) else batch.positions.new_zeros(1)
        with self._attention.step(batch, kv, layer_done):
            logits = self._program(batch.token_ids, batch.positions, kept)
        return logits[:, : self.spec.vocab_size].float() if len(rows) else None

    def greedy(self, batch: StepBatch, kv: Tensor, layer_done: LayerDone | None = None) -> GreedyTokens | None:
        """The highest of `scores`."""
        scores = self.scores(batch, kv, layer_done)
        return None if scores is None else GreedyTokens(*best_of_rows(self._library, scores, scores.shape[1]))
