"""Which node the next worker group goes to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.cluster.ray.node_choice import NodeLoad, choose_node, matches


def node(
    name: str, gpus: float = 8, taken: float = 0, replicas: int = 0, labels: Mapping[str, str] | None = None
) -> NodeLoad:
    return NodeLoad(name, labels or {}, {"GPU": gpus}, {"GPU": taken}, replicas, replicas)


def test_replicas_go_where_there_are_fewest() -> None:
    assert choose_node([node("a", replicas=2), node("b", replicas=1), node("c", replicas=1)], {"GPU": 1}, {}) == "b"


def test_a_group_goes_where_all_its_ranks_have_room() -> None:
    assert choose_node([node("a", taken=6, replicas=0), node("b", taken=4, replicas=3)], {"GPU": 4}, {}) == "b"
    assert choose_node([node("a", taken=6), node("b", taken=5)], {"GPU": 4}, {}) is None


def test_a_pool_stays_on_the_nodes_with_its_labels() -> None:
    nodes = [node("a", labels={"rack": "1"}), node("b", labels={"rack": "2"}, replicas=5)]
    assert choose_node(nodes, {"GPU": 1}, {"rack": "2"}) == "b"
    assert choose_node(nodes, {"GPU": 1}, {"rack": "3"}) is None


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("a", [True, False, False]),
        ("!a", [False, True, True]),
        ("in(a, b)", [True, True, False]),
        ("!in(b)", [True, False, True]),
    ],
)
def test_labels_are_compared_as_ray_does(wanted: str, found: list[bool]) -> None:
    assert [matches(labels, {"zone": wanted}) for labels in ({"zone": "a"}, {"zone": "b"}, {})] == found


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(0, 30))
def test_pools_that_grow_group_by_group_differ_by_one_replica_where_there_is_room(
    sizes: list[int], num_groups: int
) -> None:
    placed = dict.fromkeys(range(len(sizes)), 0)
    for _ in range(num_groups):
        loads = [node(str(n), sizes[n], count, count) for n, count in placed.items()]
        chosen = choose_node(loads, {"GPU": 1}, {})
        if chosen is None:
            assert all(count == sizes[n] for n, count in placed.items())
            break
        placed[int(chosen)] += 1
    for n, count in placed.items():
        assert all(count >= other - 1 or count == sizes[n] for other in placed.values())
