"""What operators can do with the models of a cluster while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipstream.cluster.fleet.author import Author
from slipstream.cluster.state.model_state import ModelPhase


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as operators see it. `reason` is why it does not serve, if there is one to give. `num_prefill` and
    `num_decode` are how many worker groups are wanted, `num_ready` how many serve. `path` is where its files are,
    `config` the file that says so."""

    name: str
    aliases: tuple[str, ...]
    version: str
    state: ModelPhase
    reason: str
    num_prefill: int
    num_decode: int
    num_ready: int
    path: str
    config: str


class ModelsPort(Protocol):
    """Changes raise FleetError if they are impossible; then nothing has changed."""

    def models(self) -> tuple[ModelInfo, ...]: ...

    async def add(self, path: Path, by: Author) -> list[str]:
        """Adds the models in a file. Returns their names when they serve. If one of them cannot be served, none is
        added."""

    async def remove(self, name: str, by: Author) -> None:
        """Drains a model, and ends its workers. Returns when it is gone."""

    async def set_aliases(self, name: str, aliases: Sequence[str], by: Author) -> None:
        """Sets the further names of a model."""
