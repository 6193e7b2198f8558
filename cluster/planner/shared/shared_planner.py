"""The interface of a planner for a cluster of several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from slipstream.cluster.fleet.fleet_port import FleetState
from slipstream.cluster.planner.planner_decision import PlannerDecision
from slipstream.cluster.planner.shared.model_share import ModelShare
from slipstream.router.status.load_signals import Signals


class SharedPlanner(Protocol):
    """Asked every `planner.interval_s` with what is seen of all models, by name. No clock, no I/O, as a `Planner`."""

    def decide(
        self, signals: Mapping[str, Signals], fleets: Mapping[str, FleetState], now: float
    ) -> dict[str, PlannerDecision]:
        """One decision for each model. A worker that moves is among the actions of the model that gets it."""

    def follow(self, shares: Sequence[ModelShare]) -> None:
        """The models from now on: some may be new, others gone."""
