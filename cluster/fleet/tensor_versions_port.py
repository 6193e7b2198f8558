"""What operators can do with the versions of the models of a repository."""

from __future__ import annotations

from typing import Protocol

from slipstream.cluster.fleet.author import Author
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus


class TensorVersionsPort(Protocol):
    """Raises FleetError if a change is impossible; then nothing has changed."""

    async def status(self, model: str) -> TensorVersionsStatus | None:
        """How the versions of a model do; None if the repository has no such model."""

    def routes(self, model: str) -> TensorVersionsConfig:
        """How its requests are divided."""

    async def set_split(self, model: str, split: dict[str, float], by: Author) -> None: ...
    async def set_mirror(self, model: str, version: str, percent: float | None, by: Author) -> None:
        """`percent` None: copies no more requests to the version."""

    async def roll_back(self, model: str, by: Author) -> None: ...
