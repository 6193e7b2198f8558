"""What operators can do with the numbers of instances of the models of a repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.cluster.fleet.author import Author
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.status.instances_status import InstancesStatus


class InstanceCountsPort(Protocol):
    """Raises FleetError if a change is impossible; then nothing has changed."""

    async def status(self, model: str) -> Sequence[InstancesStatus]:
        """Of the versions of a model that have instances; with "", of all models."""

    def counts(self, model: str) -> InstanceCountsConfig:
        """The settings of a model as the deployment has them now."""

    async def set_counts(self, model: str, counts: InstanceCountsConfig, by: Author) -> None:
        """From now on. Returns before the instances have come or gone."""
