"""Programs of `torch.export`, as graphs or compiled ahead of time. Their inputs and outputs are leaves of the arguments
and of what is returned, which have paths as names: `ARGS[0]`, `KWARGS[mask]`, `RESULT[logits]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from slipstream.workers.backends.file_checks import WILDCARD, FileTensor
from slipstream.workers.backends.pytorch.execution_settings import ExecutionSettings
from slipstream.workers.backends.pytorch.torch_arrays import datatype_of
from slipstream.workers.backends.pytorch.torch_program import ProgramInput, TorchProgram, Value


def load_exported(path: Path, settings: ExecutionSettings) -> TorchProgram:
    """A file of `torch.export.save`. Raises what PyTorch raises."""
    program = torch.export.load(path)
    if settings.device is not None and settings.device.type != "cpu":
        from torch.export.passes import move_to_device_pass  # which imports much of PyTorch's compiler

        program = move_to_device_pass(program, settings.device)
    spec = program.call_spec
    described = {
        node.name: described_input(node.name, node.meta["val"])
        for node in program.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
    }
    inputs = tuple(
        ProgramInput((*paths, str(name)), described.get(str(name)))
        for paths, name in zip(input_paths(spec.in_spec), program.graph_signature.user_inputs, strict=True)
    )
    may_write = any(is_writing(node) for node in program.graph.nodes)
    return TorchProgram(call_of(program.module(), spec.in_spec), inputs, output_paths(spec.out_spec), may_write)


def load_compiled(path: Path, settings: ExecutionSettings) -> TorchProgram:
    """A package of `aoti_compile_and_package`. Raises what PyTorch raises."""
    from torch._inductor import aoti_load_package  # which imports much of PyTorch's compiler

    device = settings.device
    index = -1 if device is None or device.index is None else device.index
    package = aoti_load_package(str(path), device_index=index)
    in_spec, out_spec = (pytree.treespec_loads(text) for text in package.loader.get_call_spec())
    inputs = tuple(ProgramInput(paths) for paths in input_paths(in_spec))
    return TorchProgram(call_of(package, in_spec), inputs, output_paths(out_spec), may_write=True)


def call_of(program: Callable[..., Any], in_spec: pytree.TreeSpec) -> Callable[[Any], Sequence[Value]]:
    def call(given: Sequence[Value]) -> Sequence[Value]:
        arguments, keywords = pytree.tree_unflatten(list(given), in_spec)
        leaves: list[Value] = pytree.tree_leaves(program(*arguments, **keywords))
        return leaves

    return call


def input_paths(in_spec: pytree.TreeSpec) -> list[tuple[str, ...]]:
    arguments, keywords = pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec)
    named = {place: path for path, place in [*paths_of(arguments, "ARGS"), *paths_of(keywords, "KWARGS")]}
    return [(named[place],) for place in range(in_spec.num_leaves)]


def output_paths(out_spec: pytree.TreeSpec) -> tuple[tuple[str, ...], ...]:
    returned = pytree.tree_unflatten(list(range(out_spec.num_leaves)), out_spec)
    named = {place: path for path, place in paths_of(returned, "RESULT")}
    return tuple((named[place],) for place in range(out_spec.num_leaves))


def paths_of(tree: Any, path: str) -> list[tuple[str, int]]:
    """The path and the place of each leaf."""
    if isinstance(tree, dict):
        return [found for key, value in tree.items() for found in paths_of(value, f"{path}[{key}]")]
    if isinstance(tree, tuple | list):
        return [found for index, value in enumerate(tree) for found in paths_of(value, f"{path}[{index}]")]
    return [(path, tree)]


def described_input(name: str, example: torch.Tensor) -> FileTensor:
    shape = tuple(size if isinstance(size, int) else WILDCARD for size in example.shape)
    return FileTensor(name, f"TYPE_{datatype_of(example.dtype)}", shape)


def is_writing(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
