"""The planner of workers and instances at work in the driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.model_fleet import ModelFleet
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.planner.instances.instance_share import instance_shares
from slipstream.cluster.planner.planner_decision import PlannerAction, PlannerDecision, SetInstances
from slipstream.cluster.planner.shared.cluster_planner import ClusterPlanner
from slipstream.cluster.planner.shared.shared_loading import shares_of
from slipstream.cluster.planner.shared.shared_loop import ModelsLoop
from slipstream.router.status.load_signals import Signals
from slipstream.router.status.tensor_signals import TensorSignals

log = logging.getLogger(__name__)


class PlannedInstances(Protocol):
    """The instances of a cluster's tensor models. Raises OSError while there is no router to ask."""

    async def signals(self) -> Sequence[TensorSignals]:
        """The load of all versions that have instances."""

    async def resize(self, action: SetInstances, reason: str) -> None:
        """Begins a change, and returns before the instances have come or gone."""


class ClusterPlannerLoop(ModelsLoop):
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
        super().__init__(config, fleet, signals, decisions, say)
        self._planner, self._served, self._instances = planner, served, instances

    async def _decide(self) -> dict[str, PlannerDecision]:
        served = self._served()
        shares = shares_of(served)
        self._planner.follow(shares, instance_shares(served.repository))
        signals = await self._signals_of(shares)
        tensors = await self._instances.signals()
        return self._planner.decide(signals, self._states(signals), tensors, time.monotonic())

    async def _begin(self, name: str, action: PlannerAction, why: str) -> None:
        if isinstance(action, SetInstances):
            await self._instances.resize(action, why)
        else:
            await super()._begin(name, action, why)
