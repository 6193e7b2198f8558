"""The planner of several models at work in the driver."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetError, FleetState
from slipstream.cluster.fleet.model_fleet import ModelFleet
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.planner.planner_actions import carry_out
from slipstream.cluster.planner.planner_decision import PlannerAction, PlannerDecision
from slipstream.cluster.planner.planner_loop import look_on
from slipstream.cluster.planner.shared.model_share import ModelShare
from slipstream.cluster.planner.shared.shared_planner import SharedPlanner
from slipstream.router.status.load_signals import Signals

log = logging.getLogger(__name__)


class ModelsLoop(ABC):
    """A planner of all models of a cluster at work. `signals` of a model raises OSError while there is no router to
    ask."""

    def __init__(
        self,
        config: PlannerConfig,
        fleet: ModelFleet,
        signals: Callable[[str], Awaitable[Signals]],
        decisions: DecisionLog,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._fleet, self._signals, self._decisions, self._say = config, fleet, signals, decisions, say

    async def run(self) -> None:
        """Until cancelled."""
        await look_on(self._config, self.look, self._may_wake, self._decisions)

    def _may_wake(self) -> bool:
        return any(state.num_decode == 0 for state in self._states(self._fleet.models).values())

    def _states(self, names: Iterable[str]) -> dict[str, FleetState]:
        return {name: self._fleet.of_model(name).state() for name in names if name in self._fleet.models}

    async def look(self) -> dict[str, PlannerDecision]:
        """A decision for each model, and the beginning of what they ask for."""
        decisions = await self._decide()
        for name, decision in decisions.items():
            failed = await self._carry_out(name, decision)
            self._decisions.add(decision, time.time(), failed, name)
            if decision.actions:
                self._say(f"planner: {name}: {decision.why}" + "".join(f"; not done: {one}" for one in failed))
        return decisions

    @abstractmethod
    async def _decide(self) -> dict[str, PlannerDecision]:
        """A decision for each model. Raises OSError while there is no router."""

    async def _signals_of(self, shares: Sequence[ModelShare]) -> dict[str, Signals]:
        known = {share.name for share in shares}
        return {name: await self._signals(name) for name in self._fleet.models if name in known}

    async def _carry_out(self, name: str, decision: PlannerDecision) -> tuple[str, ...]:
        """What could not be done, and why."""
        failed = []
        for action in decision.actions:
            try:
                await self._begin(name, action, decision.why)
            except FleetError as error:
                failed.append(f"{action}: {error.reason}")
            except OSError as error:
                failed.append(f"{action}: the router does not answer: {error}")
        return tuple(failed)

    async def _begin(self, name: str, action: PlannerAction, why: str) -> None:
        """Raises FleetError, or OSError while there is no router."""
        await carry_out(action, self._fleet.of_model(name), self._fleet)


class SharedPlannerLoop(ModelsLoop):
    """`shares` are the models as they are configured now: some may be added or removed while the planner runs."""

    def __init__(
        self,
        config: PlannerConfig,
        planner: SharedPlanner,
        fleet: ModelFleet,
        signals: Callable[[str], Awaitable[Signals]],
        shares: Callable[[], Sequence[ModelShare]],
        decisions: DecisionLog,
        say: Callable[[str], None] = log.info,
    ) -> None:
        super().__init__(config, fleet, signals, decisions, say)
        self._planner, self._shares = planner, shares
        self._followed: list[ModelShare] = []

    async def _decide(self) -> dict[str, PlannerDecision]:
        shares = list(self._shares())
        if shares != self._followed:
            self._planner.follow(shares)
            self._followed = shares
        signals = await self._signals_of(shares)
        return self._planner.decide(signals, self._states(signals), time.monotonic())
