"""What an update needs of the cluster that it changes."""

from __future__ import annotations

from typing import Protocol

from slipstream.cluster.config import ClusterConfig
from slipstream.cluster.fleet import FleetPort
from slipstream.router.version_status import VersionStatus


class VersionedFleet(FleetPort, Protocol):
    """A fleet that makes groups of several versions. While it `is_held` it refuses what others ask of `FleetPort`, but
    for `add`; the update lets groups go with `retire`."""

    is_held: bool

    async def retire(self, name: str) -> None:
        """Drains a group, whose work moves to others, and ends it for good."""

    def add_version(self, version: str, config: ClusterConfig) -> None: ...
    def forget_version(self, version: str) -> None: ...


class VersionRouter(Protocol):
    """What an update asks of the router. The calls raise OSError while there is none."""

    async def set_split(self, split: dict[str, float] | None) -> None: ...
    async def versions(self) -> tuple[VersionStatus, ...]: ...
    async def follow(self, config: ClusterConfig) -> None: ...
