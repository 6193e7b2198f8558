"""The life of a version: loading, serving, deaths and restarts, unloading."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.infer.lives.version_life import (
    DEATHS_UNTIL_DOWN,
    MAX_HOSTS_LOST,
    Action,
    Do,
    InstancePhase,
    ProcessEnd,
    VersionLife,
)
from slipstream.router.tensors.model_spec import ModelPhase

NAMES = ("M_0_0", "M_0_1")


def serving(*names: str) -> VersionLife:
    """A version whose instances serve."""
    life = VersionLife(names, completes=False)
    life.begin()
    for name in names:
        life.connected(name, 0.0)
        life.initialized(name)
        life.warmed(name, 0.0)
    assert life.phase is ModelPhase.READY
    return life


def test_it_is_loaded_when_the_last_instance_serves() -> None:
    life = VersionLife(NAMES, completes=False)
    assert life.begin() == [Action(Do.START, "M_0_0"), Action(Do.START, "M_0_1")]
    for name in NAMES:
        assert life.connected(name, 1.0) == [Action(Do.INITIALIZE, name)]
        assert life.initialized(name) == [Action(Do.WARM, name)]
    assert life.warmed("M_0_1", 2.0) == [Action(Do.SERVE, "M_0_1")]
    assert life.phase is ModelPhase.LOADING
    assert life.warmed("M_0_0", 3.0) == [Action(Do.SERVE, "M_0_0"), Action(Do.LOADED)]
    assert life.phase is ModelPhase.READY


def test_one_instance_completes_the_configuration_for_all() -> None:
    life = VersionLife(NAMES, completes=True)
    life.begin()
    assert life.connected("M_0_1", 0.0) == []
    assert life.connected("M_0_0", 0.0) == [Action(Do.COMPLETE, "M_0_0")]
    assert life.completed(0.0) == [Action(Do.INITIALIZE, "M_0_0"), Action(Do.INITIALIZE, "M_0_1")]


def test_an_instance_that_comes_after_the_completion_is_initialised_at_once() -> None:
    life = VersionLife(NAMES, completes=True)
    life.begin()
    life.connected("M_0_0", 0.0)
    life.completed(0.0)
    assert life.connected("M_0_1", 0.0) == [Action(Do.INITIALIZE, "M_0_1")]


def test_one_failure_ends_the_load_and_stops_all_instances() -> None:
    life = VersionLife(NAMES, completes=False)
    life.begin()
    life.connected("M_0_0", 0.0)
    actions = life.failed("M_0_0", "Internal: ValueError: no")
    assert actions == [Action(Do.STOP, "M_0_0"), Action(Do.STOP, "M_0_1"), Action(Do.FAILED)]
    assert (life.phase, life.reason) == (ModelPhase.UNAVAILABLE, "Internal: ValueError: no")
    assert life.ended("M_0_0", ProcessEnd("exit 1"), 1.0) == []
    assert life.ended("M_0_1", ProcessEnd("exit 0"), 1.0) == [Action(Do.END)]


def test_a_process_that_dies_while_it_loads_fails_the_load() -> None:
    life = VersionLife(("M_0_0",), completes=False)
    life.begin()
    assert life.ended("M_0_0", ProcessEnd("killed"), 1.0) == [Action(Do.FAILED), Action(Do.END)]
    assert life.reason == "killed"


def test_a_dead_instance_comes_back_after_a_growing_pause() -> None:
    life = serving(*NAMES)
    pauses = []
    now = 10.0
    for _ in range(4):
        assert life.ended("M_0_0", ProcessEnd("killed"), now) in ([Action(Do.RETIRE, "M_0_0")], [])
        assert life.phase is ModelPhase.READY
        assert life.next_time is not None
        pauses.append(life.next_time - now)
        assert life.due(now) == []
        now = life.next_time
        assert life.due(now) == [Action(Do.START, "M_0_0")]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8])
    life.connected("M_0_0", now)
    life.initialized("M_0_0")
    assert life.warmed("M_0_0", now) == [Action(Do.SERVE, "M_0_0")]
    life.ended("M_0_0", ProcessEnd("killed"), now + 1000.0)
    assert life.next_time == pytest.approx(now + 1000.1)  # it had served for long


def test_an_instance_that_dies_for_days_is_started_again() -> None:
    life = serving("M_0_0")
    for death in range(2000):
        life.ended("M_0_0", ProcessEnd("killed"), 100.0 * death)
        assert life.due(100.0 * death + 30.0) == [Action(Do.START, "M_0_0")]


def test_it_is_down_when_all_instances_keep_dying() -> None:
    life = serving("M_0_0")
    for death in range(3):
        assert not life.is_down
        life.ended("M_0_0", ProcessEnd("killed"), 10.0 * death)
        life.due(10.0 * death + 5.0)
    assert life.is_down


def test_an_instance_that_has_executed_something_is_no_crash_loop() -> None:
    life = serving("M_0_0")
    for death in range(5):
        life.ended("M_0_0", ProcessEnd("killed", was_useful=True), 10.0 * death)
        assert life.next_time == pytest.approx(10.0 * death + 0.1)
        life.due(10.0 * death + 5.0)
    assert not life.is_down


def test_an_instance_whose_host_is_lost_waits_for_another_host() -> None:
    life = serving("M_0_0")
    lost = ProcessEnd("its host is gone", is_host_lost=True)
    assert life.ended("M_0_0", lost, 1.0) == [Action(Do.RETIRE, "M_0_0"), Action(Do.START, "M_0_0")]
    assert life.ended("M_0_0", ProcessEnd("it could not be started"), 2.0) == []  # after a pause
    assert life.next_time == pytest.approx(2.1)


def test_a_load_goes_on_when_a_host_is_lost_but_not_if_that_happens_again_and_again() -> None:
    life = VersionLife(("M_0_0",), completes=True)
    life.begin()
    lost = ProcessEnd("its host is gone", is_host_lost=True)
    for _ in range(MAX_HOSTS_LOST):
        assert life.ended("M_0_0", lost, 1.0) == [Action(Do.START, "M_0_0")]
        assert life.phase is ModelPhase.LOADING
    assert life.connected("M_0_0", 2.0) == [Action(Do.COMPLETE, "M_0_0")]
    assert life.ended("M_0_0", lost, 3.0) == [Action(Do.FAILED), Action(Do.END)]


def test_a_lost_connection_retires_an_instance_until_it_connects_again() -> None:
    life = serving("M_0_0")
    assert life.disconnected("M_0_0") == [Action(Do.RETIRE, "M_0_0")]
    assert life.connected("M_0_0", 1.0, is_ready=True) == [Action(Do.SERVE, "M_0_0")]


def test_instances_of_an_earlier_router_serve_once_the_configuration_is_complete() -> None:
    life = VersionLife(NAMES, completes=True)
    life.begin()
    assert life.connected("M_0_0", 0.0, is_ready=True) == [Action(Do.COMPLETE, "M_0_0")]
    assert life.connected("M_0_1", 0.0) == []
    assert life.completed(1.0) == [Action(Do.SERVE, "M_0_0"), Action(Do.INITIALIZE, "M_0_1")]


def test_unloading_waits_for_requests() -> None:
    life = serving(*NAMES)
    assert life.unload(has_requests=True) == []
    assert life.phase is ModelPhase.UNLOADING
    stops = [action for action in life.drained() if action.do is Do.STOP]
    assert stops == [Action(Do.STOP, "M_0_0"), Action(Do.STOP, "M_0_1")]
    assert life.ended("M_0_0", ProcessEnd("exit 0"), 1.0) == []
    assert life.ended("M_0_1", ProcessEnd("exit 0"), 1.0) == [Action(Do.END)]
    assert (life.phase, life.reason) == (ModelPhase.UNAVAILABLE, "unloaded")


def test_instances_that_die_while_it_unloads_come_back_for_the_requests_that_are_left() -> None:
    life = serving("M_0_0")
    life.ended("M_0_0", ProcessEnd("killed"), 1.0)
    assert life.unload(has_requests=True) == []
    assert life.due(1.2) == [Action(Do.START, "M_0_0")]
    life.connected("M_0_0", 2.0)
    life.initialized("M_0_0")
    assert life.warmed("M_0_0", 2.0) == [Action(Do.SERVE, "M_0_0")]
    assert life.drained() == [Action(Do.RETIRE, "M_0_0"), Action(Do.STOP, "M_0_0")]
    assert life.ended("M_0_0", ProcessEnd("exit 0"), 3.0) == [Action(Do.END)]


def test_instances_that_die_while_it_unloads_without_requests_do_not_come_back() -> None:
    life = serving(*NAMES)
    life.ended("M_0_0", ProcessEnd("killed"), 1.0)
    assert life.unload(has_requests=False) == [Action(Do.RETIRE, "M_0_1"), Action(Do.STOP, "M_0_1")]
    assert life.next_time is None
    assert life.ended("M_0_1", ProcessEnd("killed"), 2.0) == [Action(Do.END)]


def test_it_is_down_when_instances_die_again_and_again_while_it_unloads() -> None:
    life = serving("M_0_0")
    life.unload(has_requests=True)
    for death in range(DEATHS_UNTIL_DOWN):
        assert not life.is_down
        life.ended("M_0_0", ProcessEnd("killed"), 10.0 + death)
        life.due(10.5 + death)
    assert life.is_down  # so that the requests end
    assert [action.do for action in life.drained()] == [Do.STOP]


def test_a_load_can_fail_or_be_given_up_before_it_has_begun() -> None:
    life = VersionLife(NAMES, completes=False)
    assert life.given_up("no such GPU") == [Action(Do.FAILED), Action(Do.END)]
    life = VersionLife(NAMES, completes=False)
    assert life.unload(has_requests=False) == [Action(Do.END)]


def test_an_instance_that_cannot_be_initialised_again_is_stopped_and_comes_back_later() -> None:
    life = serving("M_0_0")
    life.ended("M_0_0", ProcessEnd("killed"), 1.0)
    life.due(2.0)
    assert life.connected("M_0_0", 3.0) == [Action(Do.INITIALIZE, "M_0_0")]
    assert life.failed("M_0_0", "too little of resource R") == [Action(Do.STOP, "M_0_0")]
    assert life.ended("M_0_0", ProcessEnd("exit 0"), 4.0) == []
    assert life.due(5.0) == [Action(Do.START, "M_0_0")]


def test_a_load_can_be_given_up() -> None:
    life = VersionLife(NAMES, completes=False)
    life.begin()
    assert [action.do for action in life.unload(has_requests=False)] == [Do.STOP, Do.STOP]
    life.ended("M_0_0", ProcessEnd("exit 0"), 1.0)
    assert life.ended("M_0_1", ProcessEnd("exit 0"), 1.0) == [Action(Do.END)]


def test_of_fewer_instances_the_others_end_their_requests_first() -> None:
    life = serving(*NAMES)
    assert life.resize(["M_0_0"]) == [Action(Do.DRAIN, "M_0_1")]
    assert (life.num_serving, life.is_changing, life.is_down) == (1, True, False)
    assert life.emptied("M_0_1") == [Action(Do.RETIRE, "M_0_1"), Action(Do.STOP, "M_0_1")]
    assert life.emptied("M_0_1") == []
    assert life.ended("M_0_1", ProcessEnd("stopped"), 5.0) == []
    assert life.instances == {"M_0_0": InstancePhase.SERVING}
    assert not life.is_changing


def test_of_more_instances_only_the_further_ones_start() -> None:
    life = serving("M_0_0")
    assert life.resize(NAMES) == [Action(Do.START, "M_0_1")]
    life.connected("M_0_1", 1.0)
    life.initialized("M_0_1")
    assert life.warmed("M_0_1", 2.0) == [Action(Do.SERVE, "M_0_1")]
    assert life.num_serving == 2


def test_one_that_is_wanted_again_while_it_leaves_starts_anew() -> None:
    life = serving(*NAMES)
    life.resize(["M_0_0"])
    assert life.resize(NAMES) == []
    life.emptied("M_0_1")
    assert life.ended("M_0_1", ProcessEnd("stopped"), 5.0) == [Action(Do.START, "M_0_1")]


def test_one_that_moves_starts_anew_at_once_and_that_counts_as_no_death() -> None:
    life = serving(*NAMES)
    assert life.move("M_0_0") == [Action(Do.DRAIN, "M_0_0")]
    life.emptied("M_0_0")
    assert life.ended("M_0_0", ProcessEnd("stopped"), 5.0) == [Action(Do.START, "M_0_0")]
    assert life.next_time is None


def test_the_requests_of_one_that_leaves_and_is_lost_go_elsewhere() -> None:
    for lose in ("disconnected", "ended"):
        life = serving(*NAMES)
        life.resize(["M_0_0"])
        if lose == "disconnected":
            assert life.disconnected("M_0_1") == [Action(Do.RETIRE, "M_0_1"), Action(Do.STOP, "M_0_1")]
        else:
            assert life.ended("M_0_1", ProcessEnd("killed"), 5.0) == [Action(Do.RETIRE, "M_0_1")]


def test_an_unload_ends_those_that_leave_as_well() -> None:
    life = serving(*NAMES)
    life.resize(["M_0_0"])
    stops = life.unload(has_requests=False)
    assert {action for action in stops if action.do is Do.STOP} == {Action(Do.STOP, name) for name in NAMES}
    assert life.ended("M_0_1", ProcessEnd("stopped"), 5.0) == []
    assert life.ended("M_0_0", ProcessEnd("stopped"), 5.0) == [Action(Do.END)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=60), st.booleans())
def test_any_order_of_events_keeps_the_books(events: list[tuple[int, int]], completes: bool) -> None:
    """An instance is served and retired in turns, has one process at a time, and the version ends at most once."""
    names = ("a", "b", "c")
    life = VersionLife(names, completes=completes)
    running: set[str] = set()
    in_service: set[str] = set()
    ends = 0

    def carry_out(actions: list[Action]) -> None:
        nonlocal ends
        for action in actions:
            match action.do:
                case Do.START:
                    assert action.instance not in running
                    running.add(action.instance)
                case Do.SERVE:
                    assert action.instance in running - in_service
                    in_service.add(action.instance)
                case Do.RETIRE:
                    in_service.remove(action.instance)
                case Do.DRAIN:
                    assert action.instance in in_service
                case Do.STOP | Do.INITIALIZE | Do.COMPLETE | Do.WARM:
                    assert action.instance in running
                case Do.END:
                    assert not running
                    ends += 1
                case _:
                    pass

    carry_out(life.begin())
    now = 0.0
    for kind, index in events:
        now += 1.0
        name = names[index]
        phase = life.instances.get(name)
        if kind == 10:
            carry_out(life.resize(names[: index + 1]))
        elif kind == 0:
            carry_out(life.due(now + 100.0))
        elif kind == 1 and now > 30:
            carry_out(life.unload(has_requests=bool(in_service)))
        elif kind == 2:
            carry_out(life.drained())
        elif name not in running:
            continue
        elif kind == 11:
            carry_out(life.move(name))
        elif kind == 12:
            carry_out(life.emptied(name))
        elif (kind == 3 and not completes) or (kind == 4 and phase is InstancePhase.COMPLETING):
            carry_out(life.completed(0.0))
        elif kind == 5:
            running.remove(name)
            carry_out(life.ended(name, ProcessEnd("gone"), now))
        elif kind == 6:
            carry_out(life.disconnected(name))
        elif kind == 7 and phase in (InstancePhase.INITIALIZING, InstancePhase.WARMING):
            carry_out(life.failed(name, "no"))
        else:
            for step in (life.connected(name, now), life.initialized(name), life.warmed(name, now)):
                carry_out(step)
    assert ends <= 1
    assert in_service <= running
    leaving = [name for name, phase in life.instances.items() if phase is InstancePhase.LEAVING]
    assert life.num_serving + len(leaving) == len(in_service)
    assert running <= life.instances.keys()
