"""What a division of the budget leaves to the instances of tensor models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.cluster.planner.shared.model_share import FreeBudget


@dataclass(frozen=True, slots=True)
class InstanceRoom:
    """`free` is what neither workers nor instances have, and less than nothing while workers are still to go. `fair`:
    how many instances each version should have; without those versions where the budget need not be divided. `needy`
    are the models, and the versions of tensor models, that have too little."""

    free: FreeBudget
    fair: Mapping[str, int]
    needy: Sequence[str]
