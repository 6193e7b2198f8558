"""The imbalance of ranks that hold whole experts."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.workers.telemetry.expert_load import ExpertLoad, expert_load


def test_it_is_of_what_came_since_the_report_before() -> None:
    rows = np.zeros((2, 4), np.int64)
    load = ExpertLoad(rows, num_ranks=2)
    assert load.imbalance() == 1.0
    rows += [[5, 5, 5, 5], [10, 0, 0, 10]]
    assert load.imbalance() == 1.0
    rows += [[20, 0, 0, 0], [3, 2, 3, 2]]  # 20 of 20 on the first rank, then 5 of 10
    assert load.imbalance() == pytest.approx(2 * 25 / 30)


def test_without_rows_it_stays() -> None:
    rows = np.zeros((1, 2), np.int64)
    load = ExpertLoad(rows, num_ranks=2)
    rows += [[4, 0]]
    assert [load.imbalance(), load.imbalance()] == [2.0, 2.0]


def test_there_is_none_where_nothing_can_be_uneven() -> None:
    rows = np.zeros((1, 2), np.int64)
    assert expert_load(None, 2, expert_parallel=True) is None
    assert expert_load(rows, 1, expert_parallel=True) is None
    assert expert_load(rows, 2, expert_parallel=False) is None
    assert expert_load(rows, 2, expert_parallel=True) is not None
