"""What a worker of a role is taken for."""

from __future__ import annotations

from dataclasses import replace

from slipstream.cluster.planner.model.worker_models import FEW_SAMPLES, _completed
from slipstream.router.status.load_signals import RoleTimes

OWN = RoleTimes("decode", (1e-3, 1e-5, 1e-8), (4e-3, 3e-5, 0.0), (1e-3, 1e-5), (1e-3, 1e-5), 1e-3, 6, 500)
OTHER = RoleTimes("prefill", (2e-3, 2e-5, 2e-8), (1e-3, 3e-5, 2e-9), (1e-3, 1e-5), (1e-3, 1e-5), 1e-3, 500, 6)


def test_a_role_that_has_only_timed_steps_at_its_start_takes_the_times_of_the_one_that_computes_such() -> None:
    assert _completed(OWN, OTHER) == replace(OWN, prefill=OTHER.prefill)
    assert _completed(OTHER, OWN) == replace(OTHER, decode=OWN.decode)


def test_its_own_times_count_where_it_has_enough_or_the_other_has_no_more() -> None:
    enough = replace(OWN, num_prefill_samples=FEW_SAMPLES)
    assert _completed(enough, OTHER) == enough
    idle = replace(OTHER, num_prefill_samples=6)
    assert _completed(OWN, idle) == OWN
