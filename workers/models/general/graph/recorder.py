"""Records the operators that a model calls, as nodes of a graph.

They are the ones that Python calls (`linear`, not the transposed product that it is made of), which torch shows at its
dispatch key `PreDispatch`. `torch.fx` traces there, too, but takes forty times as long.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import TorchDispatchMode

from slipstream.workers.models.general.graph.step_graph import Node, StepGraph

aten = torch.ops.aten

# What a program of Python may have looked at, so that it calls something else for other tokens.
LOOKS = ("item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "allclose", "unique")


class NotCapturedError(Exception):
    """The model's step is no graph that holds for steps of any size. The text says why."""


def recorded(run: Callable[..., Tensor], inputs: tuple[Tensor, Tensor, Tensor]) -> StepGraph:
    """What `run` calls for these inputs. Sizes are those of this run. Raises NotCapturedError."""
    recorder = _Recorder(inputs)
    try:
        with torch.no_grad(), enable_python_dispatcher(), recorder:
            scores = run(*inputs)
    except NotCapturedError:
        raise
    except Exception as error:  # whatever a model does that cannot be recorded
        lines = str(error).strip().splitlines()
        raise NotCapturedError(f"{type(error).__name__}: {lines[0] if lines else ''}") from error
    if recorder.looked is not None:  # and the model went on after the error
        raise recorder.looked
    output = recorder.found(scores) if isinstance(scores, Tensor) else None
    if output is None:
        raise NotCapturedError("it returns something else than scores")
    return StepGraph(recorder.nodes, recorder.inputs, output)


# Torch takes only modes of its own at this key.
class _Recorder(SchemaCheckMode):  # type: ignore[no-untyped-call]
    def __init__(self, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.looked: NotCapturedError | None = None
        # Nodes by the identity of their tensors, which are kept alive. Torch wraps what some functions return (`zeros`)
        # once more, which is the same memory then.
        self._found: dict[int, tuple[Tensor, Node]] = {}
        self._by_memory: dict[tuple[object, ...], Node] = {}
        first, second, third = (self._add(tensor, _of(tensor)) for tensor in inputs)
        self.inputs = (first, second, third)

    def found(self, tensor: Tensor) -> Node | None:
        known = self._found.get(id(tensor))
        return self._by_memory.get(_memory(tensor)) if known is None else known[1]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = {} if kwargs is None else kwargs
        if func._schema.name.removeprefix("aten::") in LOOKS:
            self.looked = NotCapturedError(f"what it computes depends on numbers ({func})")
            raise self.looked
        node = Node(func, self._as_nodes(args), self._as_nodes(kwargs))
        with no_python_dispatcher():
            result = _shaped(func, args, kwargs)
        if isinstance(result, Tensor):
            node.shape, node.dtype = tuple(result.shape), result.dtype
            self._add(result, node)
            return result
        self.nodes.append(node)
        if isinstance(result, list | tuple):
            for at, one in enumerate(result):
                if isinstance(one, Tensor):
                    self._add(one, Node(operator.getitem, (node, at), {}, tuple(one.shape), one.dtype))
        return result

    def _add(self, tensor: Tensor, node: Node) -> Node:
        self.nodes.append(node)
        self._found[id(tensor)] = (tensor, node)
        self._by_memory[_memory(tensor)] = node
        return node

    def _as_nodes(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            node = self.found(value)
            return node if node is not None else self._add(value, _of(value, value.detach()))
        if isinstance(value, tuple | list):
            return type(value)([self._as_nodes(one) for one in value])
        if isinstance(value, dict):
            return {name: self._as_nodes(one) for name, one in value.items()}
        return value


def _memory(tensor: Tensor) -> tuple[object, ...]:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _of(tensor: Tensor, value: Tensor | None = None) -> Node:
    return Node(None, shape=tuple(tensor.shape), dtype=tensor.dtype, value=value)


def _shaped(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the call returns; products return zeros, as no numbers are asked for."""
    if func is aten.linear.default and args[1].ndim == 2:
        return args[0].new_zeros((*args[0].shape[:-1], args[1].shape[0]))
    if func is aten.addmm.default:
        return args[1].new_zeros((args[1].shape[0], args[2].shape[1]))
    return func(*args, **kwargs)
