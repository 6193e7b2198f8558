"""Where the models of a repository lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipstream.router.model_repository.sources.model_folder import ModelFolder, is_folder
from slipstream.router.model_repository.sources.repository_watch import ModelStamp


class RepositorySource(Protocol):
    """A folder of models. All methods block and raise OSError, or SourceError if the folder is not on this host."""

    @property
    def place(self) -> str:
        """The folder or address, for messages."""

    def names(self) -> list[str]:
        """Of all models that are there, sorted. Hidden folders (`.git`) are none."""

    def folder_of(self, model: str) -> Path | None:
        """The folder of a model on this host; None if there is no such model."""

    def stamps(self) -> dict[str, ModelStamp]:
        """When the files of each model were changed."""


@dataclass(frozen=True, slots=True)
class LocalSource:
    path: Path

    @property
    def place(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.path) if entry.name[0] != "." and is_folder(entry))

    def folder_of(self, model: str) -> Path | None:
        folder = self.path / model
        return folder if folder.is_dir() else None

    def stamps(self) -> dict[str, ModelStamp]:
        return {name: ModelStamp(ModelFolder(self.path / name).times_ns()) for name in self.names()}
