"""Functions of single numbers, recognised by what they do with some numbers, whatever operators they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.kernels.cpu.native_linear import Activation
from slipstream.workers.models.general.execution.patterns import CASTS, ELEMENTWISE
from slipstream.workers.models.general.graph.step_graph import Node

MOST_OPERATORS = 16  # that an activation is made of
FAR = torch.logspace(1, 4, 32)  # where a clamp may act that the nearer ones do not show
PROBES = torch.cat((torch.linspace(-9, 9, 513), FAR, -FAR))
TOLERANCE = 2e-5  # the two forms of gelu are twenty times as far apart

FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}


def activation_of(start: Node, users: dict[Node, list[Node]]) -> tuple[Node, Activation] | None:
    """What is computed of `start` alone and is an activation: its last node, and its name. Nothing else reads what is
    in between."""
    values: dict[Node, Tensor] = {start: PROBES}
    waiting = list(users[start])
    found: tuple[Node, Activation] | None = None
    while waiting and len(values) <= MOST_OPERATORS:
        node = next((one for one in waiting if _is_function_of(one, values)), None)
        if node is None:
            break
        waiting.remove(node)
        values[node] = _value(node, values)
        waiting += [one for one in users[node] if one not in values and one not in waiting]
        inner = [one for one in values if one is not node]
        if all(user in values for one in inner for user in users[one]):
            name = _name_of(values[node])
            found = found if name is None else (node, name)
    return found


def _is_function_of(node: Node, values: dict[Node, Tensor]) -> bool:
    known = all(one in values for one in node.inputs) and all(one.shape == node.shape for one in node.inputs)
    return known and (node.target in ELEMENTWISE or node.target in CASTS)


def _value(node: Node, values: dict[Node, Tensor]) -> Tensor:
    """In float32, whatever the node's dtype is."""
    if node.target in CASTS:
        return values[node.args[0]]

    def number(value: Any) -> Any:
        return values[value] if isinstance(value, Node) else value

    target: Any = node.target
    result: Tensor = target(*map(number, node.args), **{name: number(value) for name, value in node.kwargs.items()})
    return result


def _name_of(value: Tensor) -> Activation | None:
    return next(
        (name for name, own in FUNCTIONS.items() if torch.allclose(value, own(PROBES), TOLERANCE, TOLERANCE)), None
    )
