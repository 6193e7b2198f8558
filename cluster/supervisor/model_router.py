"""The calls to the router that concern one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.supervisor.members.members import RouterControl
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.status.version_status import VersionStatus


@dataclass(frozen=True, slots=True)
class ModelRouter:
    """What an update of the model needs of the router (`VersionRouter`)."""

    router: RouterControl
    model: str

    async def set_split(self, split: dict[str, float] | None) -> None:
        await self.router.set_split(self.model, split)

    async def set_mirror(self, version: str, percent: float | None) -> None:
        await self.router.set_mirror(self.model, version, percent)

    async def add_text(self, version: str, served: ServedModelConfig, manifest: Manifest) -> None:
        await self.router.add_text(self.model, version, served, manifest)

    async def adopt_text(self, version: str) -> None:
        await self.router.adopt_text(self.model, version)

    async def remove_text(self, version: str) -> None:
        await self.router.remove_text(self.model, version)

    async def versions(self) -> tuple[VersionStatus, ...]:
        return await self.router.versions(self.model)

    async def follow(self, config: ClusterConfig) -> None:
        await self.router.follow(self.model, config)

    def expect_files(self, manifests: Sequence[Manifest]) -> None:
        self.router.expect_files(self.model, manifests)
