"""The parts of a driver that the admin API shows and changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.cluster.access.token_file import AdminTokens
from slipstream.cluster.fleet.fleet_port import FleetPort
from slipstream.cluster.history.change_log import ChangeLog
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.repository.files_watch import FilesWatch
from slipstream.cluster.state.run_state import ClusterState
from slipstream.cluster.update.updaters import Updaters


class RouterView(Protocol):
    """What is shown of the router, as plain values. None while there is no router or it does not answer."""

    async def cluster_status(self) -> dict[str, Any] | None:
        """Its view of the load (`/cluster/status`)."""

    async def signals_to_show(self) -> dict[str, Any] | None:
        """The recent load and how well it was served."""


@dataclass(frozen=True, slots=True)
class DriverParts:
    """`tokens` are what callers must present. `decisions` are those of the planner, None if it is not enabled.
    `changes` is the history; in tests it is kept in memory."""

    fleet: FleetPort
    state: ClusterState
    router: RouterView
    tokens: AdminTokens
    decisions: DecisionLog | None = None
    updaters: Updaters | None = None
    files: FilesWatch | None = None
    changes: ChangeLog = field(default_factory=lambda: ChangeLog(None))
