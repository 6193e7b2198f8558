"""The parts of a driver that the admin API shows and changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from slipstream.cluster.fleet.fleet_port import FleetPort
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.repository.files_watch import FilesWatch
from slipstream.cluster.state.run_state import ClusterState
from slipstream.cluster.update.updater import Updater


@dataclass(frozen=True, slots=True)
class DriverParts:
    """`router_status` returns the router's view of the load (`/cluster/status`), None if it does not answer; `signals`
    likewise returns the recent load and how well it was served. `token` is what callers must present. `decisions` are
    those of the planner, None if it is not enabled."""

    fleet: FleetPort
    state: ClusterState
    router_status: Callable[[], Awaitable[dict[str, Any] | None]]
    token: str
    decisions: DecisionLog | None = None
    updater: Updater | None = None
    signals: Callable[[], Awaitable[dict[str, Any] | None]] | None = None
    files: FilesWatch | None = None
