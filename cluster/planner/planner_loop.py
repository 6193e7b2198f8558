"""The planner at work in the driver: looks every few seconds, and asks the fleet for what it decided."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from slipstream.cluster.config.planner_config import PlannerConfig
from slipstream.cluster.fleet.fleet_port import FleetError, FleetPort
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.planner.planner_actions import carry_out
from slipstream.cluster.planner.planner_decision import Planner, PlannerDecision
from slipstream.router.status.load_signals import Signals

log = logging.getLogger(__name__)

WAKING_S = 1.0  # between looks at a cluster without decode workers, where every request waits for the planner


class PlannerLoop:
    """`signals` raises OSError while there is no router to ask. Nothing that goes wrong in a look ends the next."""

    def __init__(
        self,
        config: PlannerConfig,
        planner: Planner,
        fleet: FleetPort,
        signals: Callable[[], Awaitable[Signals]],
        decisions: DecisionLog,
        say: Callable[[str], None] = log.info,
    ) -> None:
        self._config = config
        self._planner = planner
        self._fleet = fleet
        self._signals = signals
        self._decisions = decisions
        self._say = say

    async def run(self) -> None:
        """Until cancelled."""
        await look_on(self._config, self.look, lambda: self._fleet.state().num_decode == 0, self._decisions)

    async def look(self) -> PlannerDecision:
        """One decision, and the beginning of what it asks for."""
        signals = await self._signals()
        decision = self._planner.decide(signals, self._fleet.state(), time.monotonic())
        failed = []
        for action in decision.actions:
            try:
                await carry_out(action, self._fleet)
            except FleetError as error:
                failed.append(f"{action}: {error.reason}")
        self._decisions.add(decision, time.time(), tuple(failed))
        if decision.actions:
            self._say(f"planner: {decision.why}" + "".join(f"; not done: {one}" for one in failed))
        return decision


async def look_on(
    config: PlannerConfig,
    look: Callable[[], Awaitable[object]],
    may_wake: Callable[[], bool],
    decisions: DecisionLog,
) -> None:
    """Looks for ever, and more often while a model `may_wake`: every request to it waits for the planner."""
    while True:
        await asyncio.sleep(min(config.interval_s, WAKING_S) if may_wake() else config.interval_s)
        try:
            await look()
        except OSError as error:  # a router that comes back is asked again
            decisions.num_errors += 1
            log.info("the planner sees nothing: %s", error)
        except Exception:  # a planner that a user has written may raise anything; the next look may be better
            decisions.num_errors += 1
            log.exception("the planner's look came to nothing")


class RunsOn(Protocol):
    async def run(self) -> None:
        """Until cancelled."""
