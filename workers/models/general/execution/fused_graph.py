"""The graph of a model's step with native kernels in place of what they compute."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from slipstream.workers.models.general.execution.fuse import Fused, fuse
from slipstream.workers.models.general.execution.join_attention import joined_heads
from slipstream.workers.models.general.execution.keep_rows import keep_rows
from slipstream.workers.models.general.execution.native_experts import NativeExperts
from slipstream.workers.models.general.graph.capture import capture
from slipstream.workers.models.general.graph.kernel_calls import Attention, Behind, JoinedAttention, Rotation
from slipstream.workers.models.general.graph.leaves import leaf_op
from slipstream.workers.models.general.graph.recorder import NotCapturedError
from slipstream.workers.models.general.graph.simplify import has_effect, simplify
from slipstream.workers.models.general.graph.step_graph import Node, StepGraph
from slipstream.workers.models.general.graph.writes import refuse_written_constants


class TracedAttention(Protocol):
    """`general.attention.flat_attention`."""

    @property
    def num_calls(self) -> int: ...

    def traced(self) -> AbstractContextManager[None]: ...

    def computes_joined(self, number: int) -> bool: ...


def fused_graph(
    run: Callable[[Tensor, Tensor, Tensor], Tensor],
    attention: TracedAttention,
    experts: NativeExperts,
    library: ctypes.CDLL,
) -> tuple[StepGraph, Fused]:
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
    refuse_written_constants(graph)
    return graph, fused


def _bind_leaves(graph: StepGraph, attention: TracedAttention, experts: NativeExperts) -> None:
    num_calls = 0
    constants: list[Node] = []
    for node in graph.nodes:
        if node.target is leaf_op():
            tensors, number, _ = node.args
            if number < 0:
                node.target, packed = experts.call(number)
                node.args = (*tensors, *packed)
                constants += [one for one in packed if one is not None]
                continue
            query, key, value, *sinks = tensors
            num_calls += 1
            joined = joined_heads(query, key, value) if attention.computes_joined(number) else None
            if joined is None:
                node.target, node.args = Attention(number), (query, key, value, *sinks)
            else:
                node.target = JoinedAttention(number, joined.rotation)
                node.args, node.kwargs = joined.nodes, {"sinks": sinks[0]} if sinks else {}
    if num_calls != attention.num_calls:
        raise NotCapturedError(f"{num_calls} calls of attention, expected {attention.num_calls}")
    graph.nodes[:0] = constants
    graph.drop_unused(_has_effect_still)


def _has_effect_still(node: Node) -> bool:
    """A rotation that a joined call makes itself has none."""
    return has_effect(node) and not isinstance(node.target, Rotation | Behind)
