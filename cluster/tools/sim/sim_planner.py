"""Asks the planner as the driver does, and does what it says, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.planner.planner_actions import carry_out
from slipstream.cluster.planner.planner_decision import Planner, PlannerDecision
from slipstream.cluster.planner.shared.shared_planner import SharedPlanner
from slipstream.cluster.tools.sim.run_result import RunResult
from slipstream.cluster.tools.sim.sim_fleet import SimFleet, SimModelFleet
from slipstream.cluster.tools.sim.sim_world import World


class PlannerLoop:
    """The planner of a single model."""

    def __init__(self, world: World, fleet: SimFleet, planner: Planner, interval_s: float, result: RunResult) -> None:
        self._world, self._fleet, self._planner, self._result = world, fleet, planner, result
        self._interval_s = interval_s
        world.clock.at(interval_s, self._look)

    def _look(self, _: object) -> None:
        clock, fleet = self._world.clock, self._fleet
        now_s = clock.now_s
        decision = self._planner.decide(self._world.dispatcher.signals(now_s), fleet.state(), now_s)
        if not decision.is_hold:
            self._result.decisions.append(decision)
        _do(decision, fleet, None)
        clock.at(now_s + self._interval_s, self._look)


class ModelsPlannerLoop:
    """The planner that divides a budget among several models."""

    def __init__(
        self,
        worlds: Mapping[str, World],
        fleet: SimModelFleet,
        planner: SharedPlanner,
        interval_s: float,
        results: Mapping[str, RunResult],
    ) -> None:
        self._worlds, self._fleet, self._planner, self._results = worlds, fleet, planner, results
        self._interval_s = interval_s
        self._clock = next(iter(worlds.values())).clock
        self._clock.at(interval_s, self._look)

    def _look(self, _: object) -> None:
        now_s = self._clock.now_s
        signals = {name: world.dispatcher.signals(now_s) for name, world in self._worlds.items()}
        fleets = {name: self._fleet.of_model(name).state() for name in self._worlds}
        for name, decision in self._planner.decide(signals, fleets, now_s).items():
            if not decision.is_hold or decision.reason == "gives":
                self._results[name].decisions.append(decision)
            _do(decision, self._fleet.of_model(name), self._fleet)
        self._clock.at(now_s + self._interval_s, self._look)


def _do(decision: PlannerDecision, fleet: SimFleet, models: SimModelFleet | None) -> None:
    for action in decision.actions:
        coroutine = carry_out(action, fleet, models)
        try:
            coroutine.send(None)  # virtual time does not pass meanwhile: the simulated fleet waits for nothing
        except StopIteration:
            continue
        except FleetError:
            return  # as in the driver: what cannot be done is decided anew at the next look
        raise AssertionError("the simulated fleet waits for nothing")
