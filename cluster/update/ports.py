"""What an update needs of the cluster that it changes."""

from __future__ import annotations

from typing import Protocol

from slipstream.cluster.config import ClusterConfig
from slipstream.cluster.fleet import FleetPort
from slipstream.router.version_status import VersionStatus


class VersionedFleet(FleetPort, Protocol):
    """A fleet that makes groups of several versions. `is_held`: nobody else may resize it."""

    is_held: bool

    def add_version(self, version: str, config: ClusterConfig) -> None: ...
    def forget_version(self, version: str) -> None: ...


class VersionRouter(Protocol):
    """What an update asks of the router. The calls raise RayError while there is none."""

    async def set_split(self, split: dict[str, float] | None) -> None: ...
    async def versions(self) -> tuple[VersionStatus, ...]: ...
    async def follow(self, config: ClusterConfig) -> None: ...
