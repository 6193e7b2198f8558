"""A version of a tensor model that is promoted in steps: pure, with a clock of the test."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slipstream.cluster.fleet.update_plan import UpdateOptions
from slipstream.cluster.update.tensor_rollout import GONE_S, TensorRollout
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus, TensorVersionStatus
from slipstream.router.status.version_status import LogMoments

OPTIONS = UpdateOptions(steps=(10, 50, 100), canary_s=60, min_requests=50)


@dataclass
class Plant:
    """Two versions, and the split between them."""

    rollout: TensorRollout = field(default_factory=lambda: TensorRollout("1", "2", OPTIONS))
    now_s: float = 0.0
    splits: list[dict[str, float]] = field(default_factory=list)
    times: dict[str, LogMoments] = field(default_factory=lambda: {"1": LogMoments(), "2": LogMoments()})
    failed: dict[str, int] = field(default_factory=lambda: {"1": 0, "2": 0})

    def serve(self, num: int, *, new_s: float = 0.01, num_failed: int = 0) -> None:
        """So many requests to each version."""
        for _ in range(num):
            self.times["1"].add(0.01)
            self.times["2"].add(new_s)
        self.failed["2"] += num_failed

    def look(self, after_s: float = 61.0) -> None:
        self.now_s += after_s
        versions = tuple(
            TensorVersionStatus(one, 1.0, times.num, self.failed[one], 0.0, replace(times))
            for one, times in self.times.items()
        )
        split = self.rollout.look(self.now_s, TensorVersionsStatus(versions))
        if split is not None:
            self.splits.append(split)


def test_a_version_that_does_well_gets_one_share_after_the_other() -> None:
    plant = Plant()
    plant.look(0)
    for _ in range(2):
        plant.serve(60)
        plant.look()
    assert plant.splits == [{"1": 90.0, "2": 10.0}, {"1": 50.0, "2": 50.0}, {"2": 100.0}]
    assert plant.rollout.phase == "done"
    assert [event.text for event in plant.rollout.events] == [
        "step 1 of 2: version 2 gets 10 % of the requests",
        "step 2 of 2: version 2 gets 50 % of the requests",
        "version 2 has taken over",
    ]


def test_a_step_waits_for_its_time_and_for_enough_requests() -> None:
    plant = Plant()
    plant.look(0)
    plant.serve(1000)
    plant.look(59)
    plant.serve(0)
    assert len(plant.splits) == 1
    plant.look(2)
    assert len(plant.splits) == 2
    plant.serve(49)
    plant.look(1000)
    assert len(plant.splits) == 2


def test_a_version_that_is_slower_is_rolled_back() -> None:
    plant = Plant()
    plant.look(0)
    plant.serve(60, new_s=0.02)
    plant.look()
    assert plant.splits[-1] == {"1": 100.0}
    assert plant.rollout.phase == "rolled_back"
    assert plant.rollout.events[-1].text == (
        "rolled back to version 1: version 2: its requests take 20.0 ms (60 requests), those of the old version "
        "10.0 ms (60): over 25% longer with 98% confidence"
    )


def test_a_version_whose_requests_fail_is_rolled_back() -> None:
    plant = Plant()
    plant.look(0)
    plant.serve(60, num_failed=10)
    plant.look()
    assert plant.rollout.phase == "rolled_back"
    assert "10 errors with 70 requests" in plant.rollout.events[-1].text


def test_what_was_slow_in_an_earlier_step_does_not_count_in_this_one() -> None:
    plant = Plant()
    plant.serve(1000, new_s=0.5)
    plant.look(0)
    plant.serve(60)
    plant.look()
    assert plant.splits[-1] == {"1": 50.0, "2": 50.0}


def test_a_version_that_is_gone_is_rolled_back() -> None:
    plant = Plant()
    plant.look(0)
    del plant.times["2"]
    plant.look(1)
    plant.look(GONE_S)
    assert plant.splits[-1] == {"1": 100.0}
    assert plant.rollout.events[-1].text == "rolled back to version 1: version 2 does not serve any more"


def test_a_version_that_the_next_router_has_still_to_load_keeps_its_share() -> None:
    plant = Plant()
    plant.look(0)
    plant.serve(60)
    before, plant.times = plant.times, {}
    for _ in range(3):
        plant.look(GONE_S / 4)
    plant.times = {"1": LogMoments(), "2": LogMoments()}
    plant.look(1)
    assert (plant.rollout.phase, plant.splits) == ("canary", [{"1": 90.0, "2": 10.0}])
    plant.times = {}
    plant.look(GONE_S / 2)  # counts anew
    plant.times = before
    plant.look()
    assert plant.splits[-1] == {"1": 50.0, "2": 50.0}


def test_what_waited_for_the_next_router_does_not_count() -> None:
    plant = Plant()
    plant.serve(100)
    plant.look(0)
    plant.times = {"1": LogMoments(), "2": LogMoments()}
    plant.serve(60, new_s=0.5)
    plant.look()
    assert plant.rollout.phase == "canary"
    plant.serve(60)
    plant.look()
    assert plant.splits[-1] == {"1": 50.0, "2": 50.0}
