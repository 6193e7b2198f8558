"""A general model as a graph of native calls: no module of transformers runs in a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from slipstream.kernels.cpu.native_rows import NativeRotation, best_of_rows
from slipstream.workers.models.directory.model_spec import GeneralSpec
from slipstream.workers.models.general.execution.capture import capture
from slipstream.workers.models.general.execution.fuse import Fused, behind, fuse
from slipstream.workers.models.general.execution.join_attention import joined_heads
from slipstream.workers.models.general.execution.keep_rows import keep_rows
from slipstream.workers.models.general.execution.leaves import leaf_op
from slipstream.workers.models.general.execution.native_experts import NativeExperts
from slipstream.workers.models.general.execution.program import Program, compiled
from slipstream.workers.models.general.execution.recorder import NotCapturedError
from slipstream.workers.models.general.execution.simplify import has_effect, simplify
from slipstream.workers.models.general.execution.step_graph import Node, StepGraph
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

    def computes_joined(self, number: int) -> bool: ...

    def compute_joined(
        self,
        number: int,
        rotation: NativeRotation | None,
        qkv: Tensor,
        cosines: Tensor | None = None,
        sines: Tensor | None = None,
        *,
        sinks: Tensor | None = None,
    ) -> Tensor: ...

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
    experts: NativeExperts,
    library: ctypes.CDLL,
) -> tuple[CapturedModel, Fused]:
    """`run` computes scores from token ids, positions and rows, with `attention` and `experts`. Raises
    NotCapturedError."""

    def traced(token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        with attention.traced(), experts.traced():
            return run(token_ids, positions, rows)

    graph = capture(traced)
    simplify(graph)
    fused = fuse(graph, library)
    _bind_leaves(graph, attention, experts)
    fused.experts = len(experts)
    keep_rows(graph)
    return CapturedModel(spec, dtype, compiled(graph), attention, library), fused


def _bind_leaves(graph: StepGraph, attention: StepAttention, experts: NativeExperts) -> None:
    num_calls = 0
    for node in graph.nodes:
        if node.target is leaf_op():
            tensors, number, _ = node.args
            if number < 0:
                node.target, node.args = experts.call(number), tuple(tensors)
                continue
            query, key, value, *sinks = tensors
            num_calls += 1
            joined = joined_heads(query, key, value) if attention.computes_joined(number) else None
            if joined is None:
                node.target, node.args = partial(attention.compute, number), (query, key, value, *sinks)
            else:
                node.target = partial(attention.compute_joined, number, joined.rotation)
                node.args, node.kwargs = joined.nodes, {"sinks": sinks[0]} if sinks else {}
    if num_calls != attention.num_calls:
        raise NotCapturedError(f"{num_calls} calls of attention, expected {attention.num_calls}")
    graph.drop_unused(_has_effect_still)


def _has_effect_still(node: Node) -> bool:
    """A rotation that a joined call makes itself has none."""
    return has_effect(node) and not isinstance(node.target, NativeRotation) and node.target is not behind
