"""Which workers count as capacity to come."""

from __future__ import annotations

import pytest

from slipstream.cluster.fleet.fleet_port import FleetMember, MemberState
from slipstream.cluster.planner.pending_starts import PendingStarts

BOUND_S = 100.0


def worker(name: str, state: MemberState, *, is_leaving: bool = False) -> FleetMember:
    return FleetMember(name, "decode", state, 0.0, is_leaving=is_leaving)


@pytest.mark.parametrize("state", ["new", "pending", "starting", "loading", "warming_up", "connecting"])
def test_a_start_counts_until_it_takes_too_long(state: MemberState) -> None:
    starts, members = PendingStarts(), [worker("a", state)]
    starts.see(members, 10.0)
    assert starts.coming(members, 109.0, BOUND_S) == members
    assert not starts.newly_failed(members, 109.0, BOUND_S)
    assert not starts.coming(members, 110.0, BOUND_S)
    assert starts.newly_failed(members, 110.0, BOUND_S) == {"a"}
    assert not starts.newly_failed(members, 111.0, BOUND_S)  # it is reported once


@pytest.mark.parametrize("state", ["dead", "failed", "stopped"])
def test_a_start_that_fails_stops_counting_at_once(state: MemberState) -> None:
    starts = PendingStarts()
    starts.see([worker("a", "starting")], 0.0)
    members = [worker("a", state)]
    starts.see(members, 5.0)
    assert not starts.coming(members, 5.0, BOUND_S)
    assert starts.newly_failed(members, 5.0, BOUND_S) == {"a"}


def test_workers_that_have_served_before_and_those_that_leave_are_none_to_come() -> None:
    starts = PendingStarts()
    starts.see([worker("a", "ready")], 0.0)
    members = [worker("a", "connecting"), worker("b", "starting", is_leaving=True)]
    starts.see(members, 5.0)
    assert not starts.coming(members, 5.0, BOUND_S)
    assert not starts.newly_failed(members, 5.0, BOUND_S)


def test_a_worker_that_serves_is_reported_once_with_the_time_that_it_took() -> None:
    starts = PendingStarts()
    assert starts.see([worker("a", "ready"), worker("b", "starting")], 0.0) == {}
    assert starts.see([worker("a", "ready"), worker("b", "ready"), worker("c", "ready")], 20.0) == {
        "b": 20.0,
        "c": 20.0,
    }
    assert starts.see([worker("b", "ready")], 25.0) == {}


def test_what_failed_in_one_model_is_not_reported_again_because_another_is_asked_about() -> None:
    starts, one, other = PendingStarts(), [worker("a", "starting")], [worker("b", "starting")]
    starts.see([*one, *other], 0.0)
    assert starts.newly_failed(one, 200.0, BOUND_S) == {"a"}
    assert starts.newly_failed(other, 200.0, BOUND_S) == {"b"}
    assert not starts.newly_failed(one, 205.0, BOUND_S)
