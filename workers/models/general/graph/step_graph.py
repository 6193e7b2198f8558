"""What a model computes in a step, as a list of calls on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Target = Any  # a function, or a call of `kernel_calls`
Fill = Callable[[NDArray[np.uint8]], None]


@dataclass(frozen=True, slots=True)
class Size:
    """A dimension that grows with the step: `of_tokens` * its tokens, or `of_rows` * the rows with scores."""

    of_tokens: int = 0
    of_rows: int = 0


@dataclass(eq=False, slots=True)
class Node:
    """One call. `args` and `kwargs` may hold nodes, also in lists. `shape` and `dtype` are those of the result in the
    step that was traced. `value` is that of a constant; its target is None, as is that of an input. A constant that is
    yet to be made has `fill` instead, which writes its bytes."""

    target: Target | None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    value: Tensor | None = None
    fill: Fill | None = None

    @property
    def is_constant(self) -> bool:
        return self.value is not None or self.fill is not None

    @property
    def inputs(self) -> list[Node]:
        return list(_nodes_in((self.args, self.kwargs)))

    def replace_inputs(self, new: dict[Node, Node]) -> None:
        if any(node in new for node in self.inputs):
            self.args = cast(tuple[Any, ...], _replaced(self.args, new))
            self.kwargs = cast(dict[str, Any], _replaced(self.kwargs, new))


@dataclass(slots=True)
class StepGraph:
    """`nodes` are in the order of computation, constants and inputs among them."""

    nodes: list[Node]
    inputs: tuple[Node, Node, Node]  # token ids [tokens], positions [tokens], rows whose scores are wanted [rows]
    output: Node

    def users(self) -> dict[Node, list[Node]]:
        users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for used in dict.fromkeys(node.inputs):
                users[used].append(node)
        return users

    def substitute(self, new: dict[Node, Node]) -> None:
        """Puts other nodes in the place of some, in all arguments."""
        for node in self.nodes:
            node.replace_inputs(new)
        self.output = new.get(self.output, self.output)

    def insert_before(self, place: Node, node: Node) -> None:
        self.nodes.insert(self.nodes.index(place), node)

    def drop_unused(self, has_effect: Callable[[Node], bool]) -> None:
        needed = {self.output, *self.inputs}
        for node in reversed(self.nodes):
            if node in needed or has_effect(node):
                needed.add(node)
                needed.update(node.inputs)
        self.nodes = [node for node in self.nodes if node in needed]


def _nodes_in(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _nodes_in(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _nodes_in(one)


def _replaced(value: Any, new: dict[Node, Node]) -> Any:
    if isinstance(value, Node):
        return new.get(value, value)
    if isinstance(value, dict):
        return {name: _replaced(one, new) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_replaced(one, new) for one in value)
    return value
