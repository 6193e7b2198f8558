"""The worker groups of a cluster that serves several models, as seen by those who divide them among the models.

move:  ready -> draining -> freeing, loading, warming_up -> connecting -> ready, in the other model; the processes stay,
       with their place and their name; one that dies on the way is started again in the other model
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slipstream.cluster.fleet.fleet_port import FleetPort
from slipstream.router.protocol.messages import Role


@dataclass(frozen=True, slots=True)
class Moved:
    """`name` is that of the group which will serve the other model. `why_new`: why that is a new group, which starts in
    place of the one that leaves; "" if the same processes go on."""

    name: str
    why_new: str = ""


class ModelFleet(Protocol):
    """One fleet for all models. `of_model` is the view of one of them: its `state` has the groups of that model alone,
    and `add` starts groups of it.

    A group that moves belongs to its new model from the call on: there it is among the wanted groups, first of all
    `draining`, and it is gone from the state of the model that it leaves.
    """

    @property
    def models(self) -> tuple[str, ...]:
        """The names of all models, those without groups among them."""

    def of_model(self, model: str) -> FleetPort:
        """Raises FleetError if there is no such model."""

    async def move(self, name: str, model: str, role: Role) -> Moved:
        """Drains a group, and lets it come back in the given role as a group of another model, whose weights the same
        processes load. If groups of the other model reserve other resources, the group leaves for good and another one
        starts. Returns when that has begun. Raises FleetError: the group or the model is unknown, the group is not
        ready, or an update holds one of the models."""
