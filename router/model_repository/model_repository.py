"""The folders of a model repository: which models are there, and one of them as a draft."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from slipstream.router.model_repository.config.backends import complete_backend
from slipstream.router.model_repository.config.config_fault import ConfigError, raise_first
from slipstream.router.model_repository.config.config_text import parse_json, parse_text
from slipstream.router.model_repository.config.defaults import set_defaults
from slipstream.router.model_repository.config.model_checks import model_faults
from slipstream.router.model_repository.config.tensor_checks import tensor_faults
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.model_folder import ModelFolder
from slipstream.router.model_repository.override_files import write_override
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_error import LoadError, RepositoryError
from slipstream.router.model_repository.repository_watch import ModelStamp
from slipstream.router.model_repository.version_policy import served_versions, versions_in

DEFAULT_OPTIONS = ReadOptions()


class ModelRepository:
    """One or more folders of models. Every method reads files and blocks: call it in a thread."""

    def __init__(self, folders: Sequence[Path], options: ReadOptions = DEFAULT_OPTIONS) -> None:
        self.folders = tuple(folders)
        self.options = options

    def names(self) -> list[str]:
        """All models of the repository, sorted, those that cannot be read included: the index without states."""
        return sorted(self._places())

    def ambiguous(self) -> list[str]:
        """The models that are in several folders, sorted: none of them can be read."""
        return sorted(name for name, count in self._places().items() if count > 1)

    def read(self, model: str, config_json: str = "", files: Mapping[str, bytes] | None = None) -> ModelDraft:
        """A model, with the configuration and files of a load request if it brought them. Raises RepositoryError, and
        LoadError if no version is to be served."""
        _check_name(model)
        if not files:
            return self._read(model, self._folder_of(model), config_json)
        if not config_json:
            raise RepositoryError("Load parameter 'config' must be specified for model file override")
        path = write_override(model, files, self.options.override_folder)
        try:
            return self._read(model, path, config_json, is_temporary=True)
        except BaseException:
            ModelDraft(model, path, ModelConfig(), (), self.options, is_temporary=True).remove()
            raise

    def stamps(self) -> dict[str, ModelStamp]:
        """Of all models, for `changes_between`. Those that are in several folders are left out, as they cannot be
        served."""
        places = self._places()
        return {
            name: ModelStamp(ModelFolder(folder / name).times_ns())
            for folder in self.folders
            for name in _models_in(folder)
            if places[name] == 1
        }

    def _places(self) -> Counter[str]:
        return Counter(name for folder in self.folders for name in _models_in(folder))

    def _folder_of(self, model: str) -> Path:
        found = [folder / model for folder in self.folders if (folder / model).is_dir()]
        if not found:
            raise RepositoryError(f"failed to poll model '{model}': model not found in any model repository.")
        if len(found) > 1:
            raise RepositoryError(f"failed to poll model '{model}': not unique across all model repositories")
        return found[0]

    def _read(self, model: str, path: Path, config_json: str, *, is_temporary: bool = False) -> ModelDraft:
        folder = ModelFolder(path)
        stamp = ModelStamp(folder.times_ns())
        try:
            existing = versions_in(folder.subfolders())
            config = parse_json(config_json) if config_json else self._read_config(folder)
            config.name = config.name or model
            complete_backend(config, folder.files_of_first_version(existing))
            set_defaults(config)
            raise_first(model_faults(config))
            if not self.options.auto_complete:
                raise_first(tensor_faults(config))
        except (ConfigError, OSError) as error:
            raise RepositoryError(str(error)) from None
        if config.name != model:
            raise RepositoryError(
                f"unexpected directory name '{model}' for model '{config.name}', directory name must equal model name"
            )
        versions = served_versions(config, existing)
        if not versions:
            raise LoadError(f"at least one version must be available under the version policy of model '{model}'")
        return ModelDraft(model, path, config, versions, self.options, is_temporary, stamp)

    def _read_config(self, folder: ModelFolder) -> ModelConfig:
        """An empty one if there is no file, and the model is to complete it. Raises ConfigError and OSError."""
        path = folder.config_file(self.options.config_name)
        if self.options.auto_complete and not path.exists():
            return ModelConfig()
        return parse_text(path.read_text(encoding="utf-8"))


def _check_name(model: str) -> None:
    if not model.strip():
        raise RepositoryError("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in model or "\0" in model or model.strip() in (".", ".."):
        raise RepositoryError(f"invalid model name '{model}', model name must not contain path traversal characters")


def _models_in(folder: Path) -> list[str]:
    """Raises OSError."""
    return [entry.name for entry in os.scandir(folder) if entry.is_dir()]
