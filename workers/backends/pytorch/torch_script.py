"""TorchScript: a module with its code (`torch.jit.save`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from slipstream.workers.backends.backend import BackendError
from slipstream.workers.backends.pytorch.execution_settings import ExecutionSettings
from slipstream.workers.backends.pytorch.torch_program import ProgramInput, TorchProgram, Value

WRITES = "!)"  # in the schema of an operator: it writes to an argument


def load_script(path: Path, settings: ExecutionSettings) -> TorchProgram:
    """Raises BackendError for a `forward` that does not take tensors, and what PyTorch raises."""
    load: Callable[..., Any] = torch.jit.load
    module = load(str(path), map_location=settings.device)
    module.eval()
    schema = module.forward.schema
    arguments = [argument for argument in schema.arguments if argument.name != "self"]
    may_write = any(WRITES in node.schema() for node in all_nodes(module.inlined_graph))
    if len(arguments) == 1 and kind_of(arguments[0]) == "DictType":
        return TorchProgram(lambda given: outputs_of(module(given)), None, None, may_write)
    inputs = tuple(input_of(argument) for argument in arguments)
    return TorchProgram(lambda given: outputs_of(module(*without_end(given))), inputs, None, may_write)


def input_of(argument: Any) -> ProgramInput:
    """Raises BackendError."""
    kind = kind_of(argument)
    if kind == "OptionalType":
        kind = argument.type.getElementType().kind()
    if kind not in ("TensorType", "ListType"):
        text = (
            f"An input of type '{argument.type}' was detected in the model. Only a single input of type Dict(str, "
            "Tensor) or input(s) of type Tensor are supported."
        )
        raise BackendError(text, "INTERNAL")
    return ProgramInput((argument.name,), is_text=kind == "ListType")


def kind_of(argument: Any) -> str:
    return str(argument.type.kind())


def all_nodes(block: Any) -> list[Any]:
    """Of a graph and the blocks in it."""
    found = []
    for node in block.nodes():
        found.append(node)
        for inner in node.blocks():
            found += all_nodes(inner)
    return found


def without_end(given: Sequence[Value]) -> Sequence[Value]:
    """Without the last arguments that were not given, which have defaults."""
    end = len(given)
    while end and given[end - 1] is None:
        end -= 1
    return given[:end]


def outputs_of(returned: Any) -> Sequence[Value] | dict[str, Value]:
    if isinstance(returned, dict):
        return returned
    is_texts = isinstance(returned, list) and all(isinstance(one, str) for one in returned)
    return returned if isinstance(returned, tuple | list) and not is_texts else (returned,)
