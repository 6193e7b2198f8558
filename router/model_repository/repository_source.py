"""Where the models of a repository lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipstream.router.model_repository.model_folder import ModelFolder
from slipstream.router.model_repository.repository_watch import ModelStamp


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
        return sorted(entry.name for entry in os.scandir(self.path) if entry.is_dir() and entry.name[0] != ".")

    def folder_of(self, model: str) -> Path | None:
        folder = self.path / model
        return folder if folder.is_dir() else None

    def stamps(self) -> dict[str, ModelStamp]:
        return {name: ModelStamp(ModelFolder(self.path / name).times_ns()) for name in self.names()}


@dataclass(frozen=True, slots=True)
class RenamedSource:
    """A folder of models, some of which are served by other names than those of their folders: `names_by_folder`."""

    source: RepositorySource
    names_by_folder: Mapping[str, str]

    @property
    def place(self) -> str:
        return self.source.place

    def names(self) -> list[str]:
        return sorted(map(self._name_of, self.source.names()))

    def folder_of(self, model: str) -> Path | None:
        for folder, name in self.names_by_folder.items():
            if name == model:
                return self.source.folder_of(folder)
        return None if model in self.names_by_folder else self.source.folder_of(model)

    def stamps(self) -> dict[str, ModelStamp]:
        return {self._name_of(folder): stamp for folder, stamp in self.source.stamps().items()}

    def renames(self, model: str) -> bool:
        """Whether its configuration may have the name of its folder."""
        return model in self.names_by_folder.values()

    def _name_of(self, folder: str) -> str:
        return self.names_by_folder.get(folder, folder)
