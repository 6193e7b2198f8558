"""Calls that a traced model makes of us: they stand in its graph as one node each, whatever they do."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "slipstream_general"


def leaf(number: int, tensors: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Stands for call `number`, which takes `tensors` and returns a tensor of `shape` and of the first one's dtype:
    zeros, until the graph's program puts the call itself there."""
    result: Tensor = leaf_op()(list(tensors), number, list(shape))
    return result


@functools.cache
def leaf_op() -> torch._ops.OpOverload:
    library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("leaf(Tensor[] tensors, int number, int[] shape) -> Tensor")
    library.impl("leaf", _zeros, "CompositeExplicitAutograd")
    _libraries.append(library)
    op: torch._ops.OpOverload = torch.ops.slipstream_general.leaf.default
    return op


_libraries: list[torch.library.Library] = []  # an operator ends with the object that has defined it


def _zeros(tensors: list[Tensor], number: int, shape: list[int]) -> Tensor:
    del number
    return tensors[0].new_zeros(shape)
