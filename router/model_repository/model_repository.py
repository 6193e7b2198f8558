"""The folders of a model repository: which models are there, and one of them as a draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_watch import ModelStamp


class ModelRepository:
    """One or more folders of models. Every method reads files and blocks: call it in a thread."""

    def __init__(self, folders: Sequence[Path], options: ReadOptions = ReadOptions()) -> None:  # noqa: B008
        self.folders = tuple(folders)
        self.options = options

    def names(self) -> list[str]:
        """All models of the repository, sorted, those that cannot be read included: the index without states."""
        raise NotImplementedError

    def read(self, model: str, config_json: str = "", files: Mapping[str, bytes] | None = None) -> ModelDraft:
        """A model, with the configuration and files of a load request if it brought them. Raises RepositoryError."""
        raise NotImplementedError

    def stamps(self) -> dict[str, ModelStamp]:
        """Of all models, for `changes_between`."""
        raise NotImplementedError
