"""A graph as a function of Python, one line for each call: nothing of the model's modules is left in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slipstream.workers.models.general.graph.step_graph import Node, Size, StepGraph

aten = torch.ops.aten

Program = Callable[[Tensor, Tensor, Tensor], Tensor]

# Methods and operators of tensors take a third of the time that torch's operators take when they are called by name.
METHODS = {
    aten.view.default: "view",
    aten.reshape.default: "reshape",
    aten.transpose.int: "transpose",
    aten.unsqueeze.default: "unsqueeze",
    aten.squeeze.dim: "squeeze",
    aten.to.dtype: "to",
    aten.type_as.default: "type_as",
    aten.select.int: "select",
    aten.expand.default: "expand",
    aten.permute.default: "permute",
    aten.tanh.default: "tanh",
    aten.contiguous.default: "contiguous",
    aten.narrow.default: "narrow",
    aten.flatten.using_ints: "flatten",
}
OPERATORS = {aten.add.Tensor: "+", aten.sub.Tensor: "-", aten.mul.Tensor: "*", aten.div.Tensor: "/"}


def compiled(graph: StepGraph) -> Program:
    """The function of token ids, positions and rows."""
    names = {node: f"v{number}" for number, node in enumerate(graph.nodes)}
    namespace: dict[str, Any] = {}
    last_use: dict[Node, Node] = {}
    for node in graph.nodes:
        last_use.update(dict.fromkeys(node.inputs, node))
    dead: dict[Node, list[str]] = {}
    for used, user in last_use.items():
        if not used.is_constant and used is not graph.output:
            dead.setdefault(user, []).append(names[used])
    tokens, positions, rows = (names[node] for node in graph.inputs)
    lines = [f"def step({tokens}, {positions}, {rows}):"]
    lines.append(f"    num_tokens, num_rows = {tokens}.shape[0], {rows}.shape[0]")
    for node in graph.nodes:
        if node.value is not None:
            namespace[names[node]] = node.value
        elif node.target is not None:
            lines.append(f"    {names[node]} = {_call(node, names, namespace)}")
            if node in dead:
                lines.append(f"    {' = '.join(dead[node])} = None")
    lines.append(f"    return {names[graph.output]}")
    exec("\n".join(lines), namespace)
    program: Program = namespace["step"]
    return program


def _call(node: Node, names: dict[Node, str], namespace: dict[str, Any]) -> str:
    arguments = [_text(one, names, namespace) for one in node.args]
    keywords = [f"{name}={_text(one, names, namespace)}" for name, one in node.kwargs.items()]
    if node.target in OPERATORS and not keywords:
        return f" {OPERATORS[node.target]} ".join(arguments)
    if node.target in METHODS:
        return f"{arguments[0]}.{METHODS[node.target]}({', '.join((*arguments[1:], *keywords))})"
    function = f"f{len(namespace)}"
    namespace[function] = node.target
    return f"{function}({', '.join((*arguments, *keywords))})"


def _text(value: Any, names: dict[Node, str], namespace: dict[str, Any]) -> str:
    """`value` as Python writes it; what has no text gets a name."""
    if isinstance(value, Node):
        return names[value]
    if isinstance(value, Size):
        terms = [f"{times} * {name}" for times, name in ((value.of_tokens, "num_tokens"), (value.of_rows, "num_rows"))]
        return terms[0] if value.of_tokens else terms[1]
    if isinstance(value, list):
        return f"[{', '.join(_text(one, names, namespace) for one in value)}]"
    if isinstance(value, tuple):
        return f"({''.join(_text(one, names, namespace) + ', ' for one in value)})"
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    name = f"c{len(namespace)}"
    namespace[name] = value
    return name
