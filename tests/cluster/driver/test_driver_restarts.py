"""When the next driver is started."""

from __future__ import annotations

from slipstream.cluster.driver.driver_restarts import MAX_FRUITLESS, MAX_PAUSE_S, STABLE_S, DriverRestarts


def test_the_first_driver_that_does_not_come_up_is_the_last() -> None:
    assert DriverRestarts().died(None) is None


def test_one_that_has_served_is_followed_at_once() -> None:
    assert DriverRestarts().died(1.0) == 0.0


def test_pauses_double_up_to_a_bound_while_drivers_serve_only_briefly() -> None:
    restarts = DriverRestarts()
    pauses = [restarts.died(1.0) for _ in range(40)]
    assert pauses[:6] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert set(pauses[6:]) == {MAX_PAUSE_S}


def test_one_that_has_served_for_long_forgives_those_before() -> None:
    restarts = DriverRestarts()
    for _ in range(5):
        restarts.died(1.0)
    assert restarts.died(STABLE_S) == 0.0
    assert restarts.died(1.0) == 1.0


def test_starts_in_vain_are_given_up_after_some_in_a_row() -> None:
    restarts = DriverRestarts()
    restarts.died(1.0)
    pauses = [restarts.died(None) for _ in range(MAX_FRUITLESS)]
    assert None not in pauses[:-1]
    assert pauses[-1] is None


def test_a_start_that_succeeds_ends_the_row_of_those_in_vain() -> None:
    restarts = DriverRestarts()
    restarts.died(1.0)
    for _ in range(3):
        assert restarts.died(None) is not None
        assert restarts.died(1.0) is not None
