"""The text of a graph is data: nothing in it is run, and nothing is read beyond the constants that it comes with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from slipstream.kernels.cpu.native_library import native_library
from slipstream.workers.models.general.graph.graph_file import GraphFileError, of_text, to_text
from slipstream.workers.models.general.graph.kernel_calls import Experts, Kernels, Norm, Product, bind
from slipstream.workers.models.general.graph.step_graph import Node, Size, StepGraph

aten = torch.ops.aten


def text_of(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Of a graph of one call, as JSON."""
    inputs = tuple(Node(None, shape=(1,), dtype=torch.int64) for _ in range(3))
    call = Node(target, (inputs[0], *args), kwargs, (1,), torch.int64)
    return json.loads(to_text(StepGraph([*inputs, call], inputs, call)))  # type: ignore[arg-type]


def set_size(stored: Any, value: Any) -> None:
    stored["nodes"][-1]["args"]["tuple"][1]["tuple"][0]["fields"][0] = value


def set_keyword(stored: Any, name: str) -> None:
    stored["nodes"][-1]["kwargs"]["dict"] = {name: 1}


def set_target(stored: Any, value: Any) -> None:
    stored["nodes"][-1]["target"] = value


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda stored: set_size(stored, "print('run') or 1"), "is no size"),
        (lambda stored: set_size(stored, True), "is no size"),
        (lambda stored: set_keyword(stored, "x=print('run'), y"), "is no name of an argument"),
        (lambda stored: set_keyword(stored, "lambda"), "is no name of an argument"),
        (lambda stored: set_target(stored, {"class": "Size", "fields": [1, 0]}), "is no call of a kernel"),
        (lambda stored: set_target(stored, "aten.add"), "is no operator"),
        (lambda stored: stored["nodes"][0].update(shape=[-1]), "is no size"),
    ],
)
def test_a_text_that_would_be_code_is_refused(spoil: Callable[[Any], None], message: str) -> None:
    stored = text_of(aten.new_zeros.default, (Size(of_tokens=1),), pin_memory=False)
    assert of_text(json.dumps(stored)).output.args[1] == (Size(of_tokens=1),)
    spoil(stored)
    with pytest.raises(GraphFileError, match=message):
        of_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (Product(torch.float32, 64, 32, False, None), [(64,)]),
        (Product(torch.float32, -64, 32, False, None), [(64,)]),
        (Product(torch.float32, 64, 32, True, None), [(64 * 32 * 4,)]),  # no room for a bias
        (Experts(torch.float32, "silu", 32, 32, 32), [(2, 64), (2, 64)]),
        (Norm(1e-5), [(2,)]),
    ],
)
def test_a_call_does_not_read_beyond_its_constants(call: Any, shapes: list[tuple[int, ...]]) -> None:
    library = native_library()
    if library is None:
        pytest.skip("no native kernels here")
    x = Node(None, shape=(1, 32), dtype=torch.float32)
    rest = [x, x] if isinstance(call, Experts) else []
    constants = [
        Node(None, shape=shape, dtype=torch.uint8, value=torch.zeros(shape, dtype=torch.uint8)) for shape in shapes
    ]
    biases = [None, None] if isinstance(call, Experts) else []
    node = Node(call, (x, *rest, *constants, *biases), {}, (1, 32), torch.float32)
    with pytest.raises(ValueError, match=r"bytes|weight: "):
        bind([node], Kernels(library, None))  # type: ignore[arg-type]
