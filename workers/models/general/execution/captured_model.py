"""A general model as a graph of native calls: no module of transformers runs in a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from slipstream.kernels.cpu.native_rows import best_of_rows
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.execution.capture import NotCapturedError, capture
from slipstream.workers.models.general.execution.fuse import Fused, fuse
from slipstream.workers.models.general.execution.leaves import leaf_op
from slipstream.workers.models.general.execution.program import Program, compiled
from slipstream.workers.models.general.execution.simplify import simplify
from slipstream.workers.models.general.execution.step_graph import StepGraph
from slipstream.workers.models.interface.model import GreedyTokens
from slipstream.workers.models.interface.step_batch import StepBatch
from slipstream.workers.models.interface.tensor_parallel import TensorParallel

LayerDone = Callable[[int], None]


class StepAttention(Protocol):
    """`general.flat_attention`."""

    @property
    def num_calls(self) -> int: ...

    def traced(self) -> AbstractContextManager[None]: ...

    def step(self, batch: StepBatch, kv: Tensor, layer_done: LayerDone | None) -> AbstractContextManager[None]: ...

    def compute(
        self, number: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor: ...


class CapturedModel:
    """A `GreedyModel` on one rank that is alone. It holds none of the modules that it was made from."""

    def __init__(
        self, spec: GeneralSpec, dtype: torch.dtype, program: Program, attention: StepAttention, library: ctypes.CDLL
    ) -> None:
        self.spec = spec
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.tp = TensorParallel()
        self._program = program
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


def captured(
    run: Callable[[Tensor, Tensor, Tensor], Tensor],
    spec: GeneralSpec,
    dtype: torch.dtype,
    attention: StepAttention,
    library: ctypes.CDLL,
) -> tuple[CapturedModel, Fused]:
    """`run` computes scores from token ids, positions and rows, with `attention`. Raises NotCapturedError."""
    with attention.traced():
        graph = capture(run)
    simplify(graph)
    fused = fuse(graph, library)
    _bind_attention(graph, attention)
    return CapturedModel(spec, dtype, compiled(graph), attention, library), fused


def _bind_attention(graph: StepGraph, attention: StepAttention) -> None:
    num_calls = 0
    for node in graph.nodes:
        if node.target is leaf_op():
            tensors, number, _ = node.args
            node.target, node.args = partial(attention.compute, number), tuple(tensors)
            num_calls += 1
    if num_calls != attention.num_calls:
        raise NotCapturedError(f"{num_calls} calls of attention, expected {attention.num_calls}")
