"""When the supervisor starts again what died, and when it gives up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.cluster.config.cluster_config import RestartConfig
from slipstream.cluster.supervisor.restart_policy import GiveUp, Restart, RestartPolicy

CONFIG = RestartConfig(backoff_s=0.5, backoff_max_s=4.0, stable_s=60.0)


def settled() -> RestartPolicy:
    policy = RestartPolicy(CONFIG)
    policy.cluster_ready()
    return policy


def test_a_death_before_the_cluster_is_ready_is_final_and_keeps_its_reason() -> None:
    policy = RestartPolicy(CONFIG)
    policy.up(1.0)
    assert policy.died(2.0, "no such file") == GiveUp("no such file")


def test_delays_double_up_to_the_maximum_and_it_never_gives_up() -> None:
    policy = settled()
    delays = []
    for _ in range(2000):
        verdict = policy.died(100.0, "killed")
        assert isinstance(verdict, Restart)
        delays.append(verdict.at_s - 100.0)
    assert delays[:5] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert set(delays[3:]) == {4.0}


def test_a_member_that_was_up_long_enough_has_a_clean_slate() -> None:
    policy = settled()
    for now_s in (0.0, 1.0, 2.0):
        policy.died(now_s, "killed")
    policy.up(10.0)
    assert policy.died(70.0, "killed") == Restart(70.5, 1)


def test_a_member_that_was_up_for_a_moment_has_not() -> None:
    policy = settled()
    policy.died(0.0, "killed")
    policy.up(10.0)
    assert policy.died(69.9, "killed") == Restart(70.9, 2)


def test_what_had_served_waits_no_longer_than_a_tenth_of_that() -> None:
    policy = settled()
    for now_s in (0.0, 1.0, 2.0):
        policy.died(now_s, "killed")
    policy.up(10.0)
    assert policy.died(20.0, "killed") == Restart(21.0, 4)
    policy.up(23.0)
    assert policy.died(24.0, "killed") == Restart(24.5, 5)  # but not less than the first time


def test_being_told_twice_that_it_is_up_does_not_renew_the_time() -> None:
    policy = settled()
    policy.died(0.0, "killed")
    policy.up(10.0)
    policy.up(69.0)
    assert policy.died(70.0, "killed") == Restart(70.5, 1)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 200)), max_size=50))
def test_every_death_after_readiness_is_answered_with_a_restart_within_the_maximum(
    events: list[tuple[bool, float]],
) -> None:
    policy, now_s, deaths = settled(), 0.0, 0
    for is_death, pause_s in events:
        now_s += pause_s
        if not is_death:
            policy.up(now_s)
            continue
        deaths += 1
        verdict = policy.died(now_s, "killed")
        assert isinstance(verdict, Restart)
        assert 0 < verdict.at_s - now_s <= CONFIG.backoff_max_s + 1e-6
        assert 1 <= verdict.number <= deaths
    assert policy.restarts == deaths
