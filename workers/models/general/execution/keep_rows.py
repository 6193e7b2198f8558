"""Behind the last attention, a step is computed for the rows alone whose scores are wanted."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.workers.models.general.execution.patterns import CASTS, ELEMENTWISE
from slipstream.workers.models.general.graph.kernel_calls import LayerNorm, Norm, Product
from slipstream.workers.models.general.graph.step_graph import Node, Size, StepGraph

aten = torch.ops.aten
TOKEN_DIM = 1  # of activations, [1, tokens, ..]


def keep_rows(graph: StepGraph) -> None:
    """Moves the choice of rows before all that computes each row by itself."""
    users = graph.users()
    rows = graph.inputs[2]
    choices = [node for node in users[rows] if node.target is aten.index.Tensor]
    if len(choices) != 1 or len(users[rows]) != 1 or choices[0].args[1] != [None, rows]:
        return
    choice = choices[0]
    tokens = choice.args[0].shape[TOKEN_DIM]
    moved: set[Node] = set()
    for node in reversed(graph.nodes):
        behind = set(users[node])
        if behind and behind <= moved | {choice} and node.inputs and _is_by_rows(node, tokens):
            moved.add(node)
    if not moved:
        return
    chosen: dict[Node, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node in moved:
            for source in node.inputs:
                if source not in moved and source not in chosen and not source.is_constant:
                    chosen[source] = Node(aten.index.Tensor, (source, [None, rows]), {}, source.shape, source.dtype)
                    nodes.append(chosen[source])
            node.replace_inputs(chosen)
            if node.target is aten.reshape.default:
                node.args = (node.args[0], [_of_rows(size) for size in node.args[1]])
        nodes.append(node)
    graph.nodes = nodes
    graph.substitute({choice: choice.args[0]})
    graph.nodes.remove(choice)


def _is_by_rows(node: Node, tokens: int) -> bool:
    if len(node.shape) != 3 or node.shape[TOKEN_DIM] != tokens:
        return False
    if isinstance(node.target, LayerNorm | Norm | Product):
        return True
    if node.target in ELEMENTWISE or node.target in CASTS:
        return all(one.shape == node.shape for one in node.inputs)
    if node.target is aten.reshape.default:  # the heads of a token side by side
        source = node.args[0]
        return len(source.shape) == 4 and source.shape[:2] == node.shape[:2]
    return False


def _of_rows(size: Any) -> Any:
    return Size(of_rows=1) if size == Size(of_tokens=1) else size
