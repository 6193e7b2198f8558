"""The planner of workers and instances at work in the driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetError, FleetState
from slipstream.cluster.fleet.model_fleet import ModelFleet
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.planner.instances.instance_share import instance_shares
from slipstream.cluster.planner.planner_actions import carry_out
from slipstream.cluster.planner.planner_decision import PlannerDecision, SetInstances
from slipstream.cluster.planner.planner_loop import look_on
from slipstream.cluster.planner.shared.cluster_planner import ClusterPlanner
from slipstream.cluster.planner.shared.shared_loading import shares_of
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.tensor_signals import TensorSignals

log = logging.getLogger(__name__)


class PlannedInstances(Protocol):
    """The instances of a cluster's tensor models. Raises OSError while there is no router to ask."""

    async def signals(self) -> Sequence[TensorSignals]:
        """Of all versions that have instances."""

    async def resize(self, action: SetInstances, reason: str) -> None:
        """Returns before the instances have come or gone."""


class ClusterPlannerLoop:
    """`signals` of a language model raises OSError while there is no router to ask. `served` is the configuration as it
    is now: models come and go, and operators change bounds, while the planner runs."""

    def __init__(
        self,
        config: PlannerConfig,
        planner: ClusterPlanner,
        fleet: ModelFleet,
        signals: Callable[[str], Awaitable[Signals]],
        served: Callable[[], ClusterConfig],
        instances: PlannedInstances,
        decisions: DecisionLog,
        say: Callable[[str], None] = log.info,
    ) -> None:
        self._config, self._planner, self._fleet, self._signals = config, planner, fleet, signals
        self._served, self._instances, self._decisions, self._say = served, instances, decisions, say

    async def run(self) -> None:
        """Until cancelled."""
        await look_on(self._config, self.look, self._may_wake, self._decisions)

    def _may_wake(self) -> bool:
        return any(state.num_decode == 0 for state in self._states().values())

    def _states(self) -> dict[str, FleetState]:
        return {name: self._fleet.of_model(name).state() for name in self._fleet.models}

    async def look(self) -> dict[str, PlannerDecision]:
        """A decision for each model, and the beginning of what they ask for."""
        served = self._served()
        shares = shares_of(served)
        self._planner.follow(shares, instance_shares(served.repository))
        known = {share.name for share in shares}
        signals = {name: await self._signals(name) for name in self._fleet.models if name in known}
        tensors = await self._instances.signals()
        states = {name: state for name, state in self._states().items() if name in signals}
        decisions = self._planner.decide(signals, states, tensors, time.monotonic())
        for name, decision in decisions.items():
            failed = await self._carry_out(name, decision)
            self._decisions.add(decision, time.time(), failed, name)
            if decision.actions:
                self._say(f"planner: {name}: {decision.why}" + "".join(f"; not done: {one}" for one in failed))
        return decisions

    async def _carry_out(self, name: str, decision: PlannerDecision) -> tuple[str, ...]:
        """What could not be done, and why."""
        failed = []
        for action in decision.actions:
            try:
                if isinstance(action, SetInstances):
                    await self._instances.resize(action, decision.why)
                else:
                    await carry_out(action, self._fleet.of_model(name), self._fleet)
            except FleetError as error:
                failed.append(f"{action}: {error.reason}")
            except OSError as error:
                failed.append(f"{action}: the router does not answer: {error}")
        return tuple(failed)
