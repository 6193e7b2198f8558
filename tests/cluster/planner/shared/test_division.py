"""A budget goes to where it is worth most."""

from __future__ import annotations

import math
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from slipstream.cluster.planner.shared.division import ShareOption, divide


def options(*served: float, weight: float = 1.0, gpus: float = 0.0, least: int = 1) -> list[ShareOption]:
    """`served` by `least` workers, one more, and so on."""
    return [ShareOption(n, n * gpus, weight * value, n) for n, value in enumerate(served, least)]


def test_what_is_enough_for_all_is_given_and_no_more() -> None:
    found = divide({"chat": options(0.5, 1.0, 1.0), "code": options(0.2, 0.6, 1.0)}, 8, math.inf)
    assert found is not None
    assert {name: one.num_workers for name, one in found.items()} == {"chat": 2, "code": 3}


def test_where_it_is_too_small_weights_decide_whose_requests_suffer() -> None:
    for heavy, light in (("chat", "code"), ("code", "chat")):
        found = divide({heavy: options(0.4, 0.7, 1.0, weight=3.0), light: options(0.4, 0.7, 1.0)}, 4, math.inf)
        assert found is not None
        assert (found[heavy].num_workers, found[light].num_workers) == (3, 1)


def test_gpus_bound_it_as_well() -> None:
    found = divide({"large": options(0.5, 1.0, gpus=4.0), "small": options(0.5, 0.9, gpus=1.0)}, 100, 6.0)
    assert found is not None
    assert (found["large"].num_workers, found["small"].num_workers) == (1, 2)
    assert divide({"large": options(0.5, gpus=4.0)}, 100, 2.0) is None


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 10),
)
def test_no_division_is_better(served: list[list[float]], budget: int) -> None:
    models = {str(number): options(*values) for number, values in enumerate(served)}
    fitting = [way for way in product(*models.values()) if sum(one.num_workers for one in way) <= budget]
    found = divide(models, budget, math.inf)
    if not fitting:
        assert found is None
        return
    assert found is not None
    best = max(sum(one.value for one in way) for way in fitting)
    assert sum(one.value for one in found.values()) >= best - 1e-5
