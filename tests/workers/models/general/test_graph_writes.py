"""A graph that writes to a tensor which the model keeps is refused, and one that writes to its own results is not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

from slipstream.kernels.cpu.native_library import native_library
from slipstream.workers.models.general.execution.fused_graph import fused_graph
from slipstream.workers.models.general.graph.recorder import NotCapturedError

Change = Callable[[Tensor, Tensor], Tensor]  # of a tensor that the model keeps [4, 4], and a number


class NoCalls:
    """Neither attention nor experts."""

    num_calls = 0

    def __len__(self) -> int:
        return 0

    def traced(self) -> AbstractContextManager[None]:
        return nullcontext()

    def computes_joined(self, number: int) -> bool:
        raise AssertionError(number)


def capture_step(change: Change) -> None:
    kept = torch.ones(4, 4)
    library = native_library()
    if library is None:
        pytest.skip("no native kernels here")

    def run(token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        return change(kept, positions[0] * 0.0) + token_ids[rows, None, None]

    fused_graph(run, NoCalls(), NoCalls(), library)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda kept, x: kept.add_(x),
        lambda kept, x: kept.view(16)[2:].mul_(x + 1),
        lambda kept, x: kept.transpose(0, 1).expand(4, 4).copy_(x),
        lambda kept, x: kept.split(2)[1].add_(x),
        lambda kept, x: torch.add(x, x, out=kept[0, 0]),
        lambda kept, x: kept.add_(0).mul_(x + 1),
    ],
)
def test_writing_to_what_a_model_keeps_is_not_captured(change: Change) -> None:
    with pytest.raises(NotCapturedError, match=r"it writes to a tensor of \[.*\] that it keeps"):
        capture_step(change)


@pytest.mark.parametrize(
    "change",
    [
        lambda kept, x: (kept + x).add_(x),
        lambda kept, x: kept.clone().mul_(x + 1),
        lambda kept, x: kept.double().mul_(x.double()),
        lambda kept, x: torch.zeros(4, 4).copy_(kept),
    ],
)
def test_writing_to_results_of_the_step_is_captured(change: Change) -> None:
    capture_step(change)
