"""A folder of models, some of which are served by other names than those of their folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.model_repository.sources.repository_source import RepositorySource
from slipstream.router.model_repository.sources.repository_watch import ModelStamp


@dataclass(frozen=True, slots=True)
class RenamedSource:
    """A RepositorySource. `names_by_folder` has the models with another name than that of their folder."""

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
