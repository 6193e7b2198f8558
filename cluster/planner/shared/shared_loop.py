"""The planner of several models at work in the driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetError, FleetState
from slipstream.cluster.fleet.model_fleet import ModelFleet
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.planner.planner_actions import carry_out
from slipstream.cluster.planner.planner_decision import PlannerDecision
from slipstream.cluster.planner.planner_loop import look_on
from slipstream.cluster.planner.shared.model_share import ModelShare
from slipstream.cluster.planner.shared.shared_planner import SharedPlanner
from slipstream.router.status.load_signals import Signals

log = logging.getLogger(__name__)


class SharedPlannerLoop:
    """`signals` of a model raises OSError while there is no router to ask. `shares` are the models as they are
    configured now: some may be added or removed while the planner runs."""

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
        self._config, self._planner, self._fleet, self._signals = config, planner, fleet, signals
        self._shares, self._decisions, self._say = shares, decisions, say
        self._followed: list[ModelShare] = []

    async def run(self) -> None:
        """Until cancelled."""
        await look_on(self._config, self.look, self._may_wake, self._decisions)

    def _may_wake(self) -> bool:
        return any(state.num_decode == 0 for state in self._states().values())

    def _states(self) -> dict[str, FleetState]:
        return {name: self._fleet.of_model(name).state() for name in self._fleet.models}

    async def look(self) -> dict[str, PlannerDecision]:
        """A decision for each model, and the beginning of what they ask for."""
        shares = list(self._shares())
        if shares != self._followed:
            self._planner.follow(shares)
            self._followed = shares
        known = {share.name for share in shares}
        signals = {name: await self._signals(name) for name in self._fleet.models if name in known}
        states = {name: state for name, state in self._states().items() if name in signals}
        decisions = self._planner.decide(signals, states, time.monotonic())
        for name, decision in decisions.items():
            failed = []
            for action in decision.actions:
                try:
                    await carry_out(action, self._fleet.of_model(name), self._fleet)
                except FleetError as error:
                    failed.append(f"{action}: {error.reason}")
            self._decisions.add(decision, time.time(), tuple(failed), name)
            if decision.actions:
                self._say(f"planner: {name}: {decision.why}" + "".join(f"; not done: {one}" for one in failed))
        return decisions
