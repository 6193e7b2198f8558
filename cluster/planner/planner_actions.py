"""What the fleet is asked for when a planner has decided."""

from __future__ import annotations

from slipstream.cluster.fleet.fleet_port import FleetPort
from slipstream.cluster.fleet.model_fleet import ModelFleet
from slipstream.cluster.planner.planner_decision import (
    AddWorkers,
    MoveWorker,
    PlannerAction,
    RemoveWorker,
    SetInstances,
    SwitchRole,
)


async def carry_out(action: PlannerAction, fleet: FleetPort, models: ModelFleet | None = None) -> None:
    """Begins what was decided for the model whose fleet this is. `models` is the fleet of all, where there are several.
    Raises FleetError."""
    match action:
        case AddWorkers(role, count):
            await fleet.add(role, count)
        case RemoveWorker(name):
            await fleet.remove(name)
        case SwitchRole(name, role):
            await fleet.switch_role(name, role)
        case MoveWorker(name, model, role):
            assert models is not None, "a worker can move only where there are several models"
            await models.move(name, model, role)
        case SetInstances():
            raise AssertionError("a model with workers has no instances")
