"""The interfaces that an update needs of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.fleet.fleet_port import FleetPort
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.status.version_status import VersionStatus


class VersionedFleet(FleetPort, Protocol):
    """A fleet with groups of several versions. While it `is_held`, it refuses all calls of `FleetPort` except `add`;
    the update removes groups with `retire`."""

    is_held: bool

    async def retire(self, name: str) -> None:
        """Drains a group, moving its work to others, and ends it for good."""

    def add_version(self, version: str, config: ClusterConfig, manifest: Manifest | None) -> None: ...
    def forget_version(self, version: str) -> None: ...


class VersionRouter(Protocol):
    """The calls of an update to the router. They raise OSError while there is none."""

    async def set_split(self, split: dict[str, float] | None) -> None: ...
    async def set_mirror(self, version: str, percent: float | None) -> None: ...
    async def add_text(self, version: str, served: ServedModelConfig, manifest: Manifest) -> None:
        """From now on text for this version is tokenised by its own tokenizer. Raises ValueError if that cannot be
        read."""

    async def adopt_text(self, version: str) -> None:
        """Text for any version is tokenised as for this one from now on."""

    async def remove_text(self, version: str) -> None: ...
    async def versions(self) -> tuple[VersionStatus, ...]: ...
    async def follow(self, config: ClusterConfig) -> None: ...
    def expect_files(self, manifests: Sequence[Manifest]) -> None:
        """Those of the versions that are served from now on. The next router gets them; the present one does not."""
