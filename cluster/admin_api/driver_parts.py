"""The parts of a driver that the admin API shows and changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.admin_api.models_port import ModelsPort
from slipstream.cluster.fleet.fleet_port import FleetError, FleetPort, FleetState
from slipstream.cluster.fleet.instance_counts_port import InstanceCountsPort
from slipstream.cluster.fleet.model_fleet import Moved
from slipstream.cluster.fleet.tensor_versions_port import TensorVersionsPort
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.repository.files_watch import FilesWatch
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.update.updaters import Updaters
from slipstream.router.protocol.messages import Role


class RouterView(Protocol):
    """What is shown of the router, as plain values. None while there is no router or it does not answer."""

    async def cluster_status(self) -> dict[str, Any] | None:
        """Its view of the load (`/cluster/status`)."""

    async def signals_to_show(self, model: str) -> dict[str, Any] | None:
        """The recent load of a model and how well it was served."""


class FleetView(Protocol):
    """The fleets of all models."""

    @property
    def models(self) -> tuple[str, ...]: ...
    def state(self) -> FleetState:
        """The groups of all models together."""

    def of_model(self, model: str) -> FleetPort:
        """Raises FleetError if there is no such model."""

    async def move(self, name: str, model: str, role: Role) -> Moved:
        """Drains a group, and lets its processes go on with another model (see `ModelFleet`). Raises FleetError."""

    def of_worker(self, name: str) -> FleetPort:
        """The fleet of the model that a group belongs to. Raises FleetError if there is no such group."""


def one_model(fleet: FleetView, model: str | None) -> str:
    """The name of this model or, without a name, of the only one. Raises FleetError."""
    names = fleet.models
    if model is None and len(names) == 1:
        return names[0]
    if model is None and not names:
        raise FleetError("conflict", "model", "this cluster serves only a model repository")
    if model is None:
        reason = f"this cluster has several models, say which one (model, or --model): {', '.join(names)}"
        raise FleetError("invalid", "model", reason)
    fleet.of_model(model)
    return model


@dataclass(frozen=True, slots=True)
class DriverParts:
    """`tokens` are what callers must present. `decisions` are those of the planner, None if it is not enabled.
    `files` watch those of each model. `changes` is the history; in tests it is kept in memory. `tensors` are the
    versions of the models of a repository, `instances` the numbers of their instances. `memory_warning` says why the
    host has too little memory for so many groups of each model and role, None if it has enough; it reads files."""

    fleet: FleetView
    state: ClusterState
    router: RouterView
    tokens: AdminTokens
    decisions: DecisionLog | None = None
    updaters: Updaters | None = None
    files: Mapping[str, FilesWatch] = field(default_factory=dict)
    changes: ChangeLog = field(default_factory=lambda: ChangeLog(None))
    models: ModelsPort | None = None
    tensors: TensorVersionsPort | None = None
    instances: InstanceCountsPort | None = None
    memory_warning: Callable[[Mapping[str, Mapping[Role, int]]], str | None] = lambda _: None
