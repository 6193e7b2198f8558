"""How many instances the scaler wants, as the load comes and goes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.infer.scaling.instance_scaler import (
    PAUSE_S,
    InstanceDemand,
    InstanceScaler,
    ScaleDecision,
    VersionKey,
)

A, B, C = ("a", "1"), ("b", "1"), ("c", "1")
BOUNDS = InstanceCountsConfig(min=1, max=8)


@dataclass
class World:
    """Versions whose loads are so many instances that are busy at the same time, if there are enough."""

    bounds: dict[str, InstanceCountsConfig] = field(default_factory=lambda: {"a": BOUNDS})
    budget: int | None = None
    counts: dict[VersionKey, int] = field(default_factory=lambda: {A: 1})
    look_every_s: float = 1.0
    now: float = 0.0
    decisions: list[ScaleDecision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scaler = InstanceScaler(self.bounds, self.budget)

    def look(self, loads: dict[VersionKey, float]) -> None:
        self.now += self.look_every_s
        counts = self.counts
        demands = {
            version: InstanceDemand(counts[version], min(load, counts[version]), int(load > counts[version]))
            for version, load in loads.items()
        }
        made = self.scaler.look(self.now, demands)
        assert len({decision.version for decision in made}) == len(made)
        for decision in made:
            assert decision.before == self.counts[decision.version] != decision.after
            self.counts[decision.version] = decision.after
        self.decisions += made

    def run(self, seconds: int, **loads: float) -> None:
        for _ in range(seconds):
            self.look({(model, "1"): load for model, load in loads.items()})


def test_it_grows_while_all_are_busy_and_requests_wait() -> None:
    world = World()
    world.run(3, a=5.0)
    assert world.counts[A] == 1  # a burst of less than three seconds
    world.run(30, a=5.0)
    assert world.counts[A] == 7  # 5 / 0.75
    assert world.decisions[0].reason == "1.0 of 1 busy, 1 requests wait"


def test_it_never_leaves_its_bounds() -> None:
    world = World()
    world.run(60, a=50.0)
    assert world.counts[A] == 8
    world.run(300, a=0.0)
    assert world.counts[A] == 1


def test_it_shrinks_only_when_fewer_have_been_enough_for_long() -> None:
    world = World(counts={A: 6})
    world.run(50, a=1.0)
    world.run(2, a=4.2)
    world.run(50, a=1.0)
    assert world.counts[A] == 6
    world.run(15, a=1.0)
    assert world.counts[A] == 2


@pytest.mark.parametrize("look_every_s", [0.3, 0.999, 1.001, 2.7])
@pytest.mark.parametrize("shrink_after_s", [1.0, 3.0, 8.0])
def test_it_does_not_matter_when_exactly_it_looks(look_every_s: float, shrink_after_s: float) -> None:
    bounds = InstanceCountsConfig(min=1, max=8, shrink_after_s=shrink_after_s)
    world = World(bounds={"a": bounds}, counts={A: 3}, look_every_s=look_every_s)
    while world.counts[A] == 3:
        world.run(1, a=0.0)
    assert shrink_after_s <= world.now - look_every_s < shrink_after_s + look_every_s + 1e-6
    begun_s = world.now
    while world.counts[A] == 1:
        world.run(1, a=5.0)
    assert world.now - begun_s < 3.0 + 2 * look_every_s


def test_requests_that_wait_for_company_do_not_let_it_grow() -> None:
    scaler = InstanceScaler({"a": BOUNDS})
    assert not any(scaler.look(float(at), {A: InstanceDemand(2, 0.4, 5)}) for at in range(20))


def test_an_instance_that_could_not_start_is_not_tried_again_at_once() -> None:
    world = World()
    world.run(5, a=3.0)
    assert world.counts[A] == 2
    world.counts[A] = 1
    world.scaler.failed(A, world.now)
    world.run(int(PAUSE_S) - 2, a=3.0)
    assert world.counts[A] == 1
    world.run(5, a=3.0)
    assert world.counts[A] == 2


def test_what_changes_counts_against_the_budget() -> None:
    scaler = InstanceScaler({"a": BOUNDS}, budget=4)
    assert not any(scaler.look(float(at), {A: InstanceDemand(1, 1.0, 1)}, num_others=3) for at in range(20))


def test_where_the_budget_is_spent_a_version_that_has_too_many_gives_one_to_the_other() -> None:
    world = World(bounds={"a": BOUNDS, "b": BOUNDS}, budget=5, counts={A: 4, B: 1})
    world.run(20, a=1.0, b=3.0)
    assert (world.counts[A], world.counts[B]) == (2, 3)
    assert "b needs an instance more" in [decision.reason for decision in world.decisions]


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 12), st.integers(1, 8))
def test_a_load_that_stays_leads_to_a_number_that_stays_and_is_enough(load: float, count: int) -> None:
    world = World(counts={A: count})
    world.run(400, a=load)
    settled = world.counts[A]
    world.decisions.clear()
    world.run(200, a=load)
    assert world.decisions == []
    assert settled >= min(load, 8)
    assert settled <= max(1, load * 1.1 / 0.75 + 1)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0, 9), st.floats(0, 9), st.floats(0, 9)), max_size=12),
    st.integers(3, 12),
)
def test_bounds_and_budget_hold_whatever_the_loads_are(
    phases: list[tuple[int, float, float, float]], budget: int
) -> None:
    bounds = {model: InstanceCountsConfig(min=1, max=5, shrink_after_s=5.0) for model in "abc"}
    world = World(bounds=bounds, budget=budget, counts={A: 1, B: 1, C: 1})
    for seconds, a, b, c in phases:
        for _ in range(seconds):
            world.run(1, a=a, b=b, c=c)
            assert all(1 <= count <= 5 for count in world.counts.values())
            assert sum(world.counts.values()) <= budget
