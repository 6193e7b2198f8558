"""The planner at work in the driver: looks every few seconds, and asks the fleet for what it decided."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

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
        while True:
            interval_s = self._config.interval_s
            await asyncio.sleep(min(interval_s, WAKING_S) if self._fleet.state().num_decode == 0 else interval_s)
            try:
                await self.look()
            except OSError as error:  # a router that comes back is asked again
                self._decisions.num_errors += 1
                log.info("the planner sees nothing: %s", error)
            except Exception:  # a planner of somebody's own may raise anything; the next look may be better
                self._decisions.num_errors += 1
                log.exception("the planner's look came to nothing")

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


@contextlib.asynccontextmanager
async def planning(loop: PlannerLoop) -> AsyncIterator[None]:
    """The planner plans meanwhile."""
    task = asyncio.create_task(loop.run(), name="planner")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
