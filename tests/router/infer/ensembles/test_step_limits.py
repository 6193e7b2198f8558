"""How many requests of an ensemble are in one step."""

from __future__ import annotations

from slipstream.router.infer.ensembles.step_limits import EnsembleStepLimits


def test_those_beyond_the_bound_enter_in_order_when_others_leave() -> None:
    limits = EnsembleStepLimits[str](1)
    assert [limits.enters(0, name) for name in ("a", "b", "c")] == [True, False, False]
    assert limits.enters(1, "d")  # another step
    assert limits.withdraw(0, "b")
    assert not limits.withdraw(0, "b")
    assert (limits.leave(0), limits.leave(0)) == ("c", None)
    assert limits.enters(0, "e")


def test_without_a_bound_all_enter() -> None:
    limits = EnsembleStepLimits[int](0)
    assert all(limits.enters(0, number) for number in range(100))
    assert limits.leave(0) is None
