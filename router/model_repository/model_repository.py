"""The folders of a model repository: which models are there, and one of them as a draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from slipstream.router.model_files.cache.host_cache import HostCache
from slipstream.router.model_files.sources.weights_source import SourceError
from slipstream.router.model_files.sources.weights_url import WeightsUrl
from slipstream.router.model_repository.config.config_fault import ModelConfigError, raise_first
from slipstream.router.model_repository.config.model_checks import model_faults, name_faults
from slipstream.router.model_repository.config.tensor_checks import tensor_faults
from slipstream.router.model_repository.config_reader import read_config
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.override_files import remove_override, write_override
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_error import LoadError, RepositoryError
from slipstream.router.model_repository.sources.model_folder import ModelFolder
from slipstream.router.model_repository.sources.remote_source import RemoteSource
from slipstream.router.model_repository.sources.renamed_source import RenamedSource
from slipstream.router.model_repository.sources.repository_source import LocalSource, RepositorySource
from slipstream.router.model_repository.sources.repository_watch import ModelStamp
from slipstream.router.model_repository.version_policy import served_versions, versions_in
from slipstream.router.tensors.infer_error import InferError, InferErrorCode

DEFAULT_OPTIONS = ReadOptions()


class ModelRepository:
    """One or more folders of models. Every method reads files and blocks: call it in a thread."""

    def __init__(self, folders: Sequence[str | Path], options: ReadOptions = DEFAULT_OPTIONS) -> None:
        """`folders` are local ones or addresses (s3://, gs://, az://, hf://). Raises ValueError for others."""
        self.sources: list[RepositorySource] = [_source_of(folder, options.cache) for folder in folders]
        self.options = options

    def register(self, folder: str, names_by_folder: Mapping[str, str]) -> None:
        """Adds a folder or address. Models that `names_by_folder` names are found by another name than that of their
        folder. Raises InferError."""
        source = _source_of(folder, self.options.cache)
        if isinstance(source, LocalSource) and not source.path.is_dir():
            raise InferError(f"failed to register '{folder}', repository not found")
        if any(known.place == source.place for known in self.sources):
            text = f"model repository '{folder}' has already been registered"
            raise InferError(text, InferErrorCode.ALREADY_EXISTS)
        for name in names_by_folder.values():
            if any(self._renames(known, name) for known in self.sources):
                text = f"failed to register '{name}', there is a conflicting mapping for '{name}'"
                raise InferError(text, InferErrorCode.ALREADY_EXISTS)
        self.sources = [*self.sources, RenamedSource(source, dict(names_by_folder)) if names_by_folder else source]

    def unregister(self, folder: str) -> None:
        """Removes a folder or address. Raises InferError."""
        place = _source_of(folder, self.options.cache).place
        left = [source for source in self.sources if source.place != place]
        if len(left) == len(self.sources):
            raise InferError(f"failed to unregister '{folder}', repository not found")
        self.sources = left

    def names(self) -> list[str]:
        """All models of the repository, sorted, those that cannot be read included: the index without states. Raises
        RepositoryError if a folder cannot be read."""
        return sorted(self._places())

    def ambiguous(self) -> list[str]:
        """The models that are in several folders, sorted: none of them can be read. Raises RepositoryError."""
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
            remove_override(path)
            raise

    def stamps(self) -> dict[str, ModelStamp]:
        """Of all models, for `changes_between`. Those that are in several folders are left out, as they cannot be
        served. Raises RepositoryError if a folder cannot be read, so that none of its models counts as gone."""
        places = self._places()
        stamps: dict[str, ModelStamp] = {}
        for source in self.sources:
            with _readable():
                stamps |= {name: stamp for name, stamp in source.stamps().items() if places[name] == 1}
        return stamps

    def _places(self) -> Counter[str]:
        places = Counter[str]()
        for source in self.sources:
            with _readable():
                places.update(source.names())
        return places

    def _folder_of(self, model: str) -> Path:
        with _readable():
            folders = [source.folder_of(model) for source in self.sources]
        found = [folder for folder in folders if folder is not None]
        if not found:
            raise RepositoryError(f"failed to poll model '{model}': model not found in any model repository.")
        if len(found) > 1:
            raise RepositoryError(f"failed to poll model '{model}': not unique across all model repositories")
        return found[0]

    @staticmethod
    def _renames(source: RepositorySource, model: str) -> bool:
        return isinstance(source, RenamedSource) and source.renames(model)

    def _read(self, model: str, path: Path, config_json: str, *, is_temporary: bool = False) -> ModelDraft:
        folder = ModelFolder(path)
        stamp = ModelStamp(folder.times_ns())
        try:
            config = read_config(model, folder, self.options, config_json)
            if any(self._renames(source, model) for source in self.sources):
                config.name = model
            raise_first(model_faults(config))
            if not self.options.auto_complete:
                raise_first(tensor_faults(config))
            raise_first(name_faults(config, model))
            versions = served_versions(config, versions_in(folder.subfolders()))
        except (ModelConfigError, OSError, UnicodeDecodeError) as error:
            raise RepositoryError(str(error)) from None
        if not versions:
            raise LoadError(f"at least one version must be available under the version policy of model '{model}'")
        return ModelDraft(model, path, config, versions, self.options, is_temporary, stamp)


def _check_name(model: str) -> None:
    if not model.strip():
        raise RepositoryError("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in model or "\0" in model or model.strip() in (".", ".."):
        raise RepositoryError(f"invalid model name '{model}', model name must not contain path traversal characters")


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (OSError, SourceError) as error:
        raise RepositoryError(f"failed to poll model repository: {error}") from None


def _source_of(folder: str | Path, cache: HostCache) -> RepositorySource:
    url = WeightsUrl.parse(str(folder)) if isinstance(folder, str) else None
    return LocalSource(Path(folder)) if url is None else RemoteSource(url, cache)
