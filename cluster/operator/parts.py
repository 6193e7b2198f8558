"""What the admin API is made of: the parts of a driver that it shows and moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from slipstream.cluster.fleet import FleetPort
from slipstream.cluster.planner.decision_log import DecisionLog
from slipstream.cluster.run_state import ClusterState
from slipstream.cluster.update.updater import Updater


@dataclass(frozen=True, slots=True)
class DriverParts:
    """`router_status`: what the router says of load (`/cluster/status`), None if it does not answer. `token`: what
    callers have to show. `decisions`: of the planner, None if none is enabled. `signals`: as `router_status`, how
    requests fared lately."""

    fleet: FleetPort
    state: ClusterState
    router_status: Callable[[], Awaitable[dict[str, Any] | None]]
    token: str
    decisions: DecisionLog | None = None
    updater: Updater | None = None
    signals: Callable[[], Awaitable[dict[str, Any] | None]] | None = None
