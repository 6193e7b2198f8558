"""How evenly the rows of steps are dealt out to the ranks of a group with expert parallelism."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]  # [layers, experts]


@dataclass(slots=True)
class ExpertLoad:
    """`rows` counts, by layer, how many rows have chosen each expert since the worker began. Ranks hold equal runs of
    the experts, and wait for each other after each layer."""

    rows: Rows
    num_ranks: int
    _before: Rows = field(init=False)
    _imbalance: float = 1.0

    def __post_init__(self) -> None:
        self._before = self.rows.copy()

    def imbalance(self) -> float:
        """The rows of the busiest rank over those of the mean one, of all layers since the call before (or as then, if
        there were no rows). 1: even; the number of ranks: one rank computes everything."""
        now = self.rows.copy()
        by_rank = (now - self._before).reshape(len(now), self.num_ranks, -1).sum(axis=2)
        total = int(by_rank.sum())
        if total:
            self._imbalance = float(by_rank.max(axis=1).sum()) * self.num_ranks / total
            self._before = now
        return self._imbalance


def expert_load(rows: Rows | None, num_ranks: int, *, expert_parallel: bool) -> ExpertLoad | None:
    """None where there is nothing to balance: no experts, one rank, or each expert on all ranks."""
    return ExpertLoad(rows, num_ranks) if rows is not None and num_ranks > 1 and expert_parallel else None
