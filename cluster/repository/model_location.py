"""Where the model of a configuration is on this host."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from slipstream.cluster.config.model_cache_config import ModelCacheConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.repository.version_folders import version_folder
from slipstream.router.model_files.model_origin import ModelOrigin
from slipstream.router.model_files.sources.weights_url import WeightsUrl


class LocatedModel(NamedTuple):
    """`version` is the number of its folder, or what the configuration says. `name` is what it is called if the
    configuration does not name it."""

    directory: Path
    version: str | None
    name: str


class ModelFiles(Protocol):
    """Makes directories for models that are not on this host."""

    def local(self, url: WeightsUrl, number: str | None, cache: ModelCacheConfig) -> tuple[Path, str]:
        """The directory of the version with this number (None: the highest there is), and its numbered folder, "" if
        it has none. Raises SourceError."""


def locate_model(model: ServedModelConfig, folder: Path, cache: ModelCacheConfig, files: ModelFiles) -> LocatedModel:
    """Finds the model of a configuration in `folder`, to which a path may be relative. Raises NoSuchVersion, OSError
    and, for one that is elsewhere, WeightsUrlError and SourceError."""
    version = None if model.version is None else str(model.version)
    url = WeightsUrl.parse(model.path)
    if url is not None:
        directory, number = files.local(url, version, cache)
        return LocatedModel(directory, number or version, url.name)
    named = Path(os.path.normpath(folder / os.path.expanduser(model.path)))
    directory, version = version_folder(named, version)
    return LocatedModel(directory, version, named.name)


def address_of(model_dir: str) -> str:
    """The address that a model was downloaded from, with its commit if there are such; else its directory."""
    origin = ModelOrigin.read(Path(model_dir))
    return model_dir if origin is None else f"{origin.url}/{origin.folder}" if origin.folder else origin.url


def with_absolute_path(cache: ModelCacheConfig, folder: Path) -> ModelCacheConfig:
    """A path below `~` stays as it is, because each host has its own home directory."""
    if cache.path is None or cache.path.startswith("~"):
        return cache
    return replace(cache, path=os.path.normpath(folder / cache.path))
