"""What operators can do with the versions of the models of a repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.cluster.fleet.author import Author
from slipstream.cluster.fleet.update_plan import Phase, UpdateEvent, UpdateOptions
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig
from slipstream.router.status.tensor_versions_status import TensorVersionsStatus


class VersionProgress(Protocol):
    """A version is promoted. `step` is which of its shares it has, as 2 of 3."""

    @property
    def phase(self) -> Phase: ...
    @property
    def events(self) -> Sequence[UpdateEvent]: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def step(self) -> str: ...


class TensorVersionsPort(Protocol):
    """Raises FleetError if a change is impossible; then nothing has changed."""

    async def status(self, model: str) -> TensorVersionsStatus | None:
        """How the versions of a model do; None if the repository has no such model."""

    def routes(self, model: str) -> TensorVersionsConfig:
        """How its requests are divided."""

    async def set_split(self, model: str, split: dict[str, float], by: Author) -> None: ...
    async def set_mirror(self, model: str, version: str, percent: float | None, by: Author) -> None:
        """`percent` None: copies no more requests to the version."""

    async def promote(self, model: str, version: str, options: UpdateOptions, by: Author) -> None:
        """Begins to give a version one share after the other, as the options say. Each is judged; a bad one is rolled
        back."""

    def progress(self, model: str) -> VersionProgress | None:
        """Of the promotion that is under way, or of the last one."""

    async def roll_back(self, model: str, by: Author) -> None: ...
