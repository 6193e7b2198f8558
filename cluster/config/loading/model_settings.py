"""Resolves what a configuration says of its models: path, version and name of each; and checks their files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.cluster.config.settings_file import ConfigError, Key, SettingsFile
from slipstream.cluster.repository.model_dir import model_problems
from slipstream.cluster.repository.model_location import LocatedModel, ModelFiles, locate_model
from slipstream.cluster.repository.version_folders import NoSuchVersion, why_not_watched
from slipstream.router.model_files.sources.weights_source import SourceError
from slipstream.router.model_files.sources.weights_url import WeightsUrlError

S = TypeVar("S", bound=ServedModelConfig)


def resolve_models(file: SettingsFile, config: ClusterConfig, files: ModelFiles) -> ClusterConfig:
    """The configuration with an absolute path and a name for each model, and with its version where the folder gives
    one. A remote model gets the directory that `files` makes for it. Raises ConfigError."""
    problems: list[str] = []

    def located(served: ServedModelConfig) -> LocatedModel:
        return locate_model(served, file.path.resolve().parent, config.model_cache, files)

    def resolved(served: S, key: Key) -> S:
        try:
            return _resolved(served, located)
        except _Mistake as mistake:
            problems.append(f"{file.place((*key, mistake.key))}: {mistake}")
            return served

    if not config.has_model:
        return config
    if not config.models:
        config = dataclasses.replace(config, model=resolved(config.model, ("model",)))
    else:
        entries = [resolved(entry, ("models", str(n))) for n, entry in enumerate(config.models)]
        try:
            if not problems:
                config = config.with_models(entries)
        except ValueError as error:  # two directories have the same name
            key, _, reason = str(error).partition(" ")
            problems.append(f"{file.place(tuple(key.split('.')))}: {reason}")
    if problems:
        raise ConfigError(problems)
    return config


def problems_of_models(config: ClusterConfig) -> Iterator[tuple[Key, str]]:
    """The mistakes in the files of all models, and in what their pools demand of them, with their keys."""
    for prefix, alone in models_by_key(config):
        for key, problem in _once(alone, model_problems(Path(alone.model.path), alone)):
            yield (*prefix, *(key[1:] if prefix and key[0] == "model" else key)), problem


def _once(alone: ClusterConfig, problems: Iterable[tuple[Key, str]]) -> Iterator[tuple[Key, str]]:
    """What is wrong with a setting that both pools have of the shared `engine` is reported once, with its key there."""
    pools, found = dict(alone.pools()), list(problems)
    shared: set[tuple[Key, str]] = set()
    for key, problem in found:
        if len(key) == 3 and key[0] in pools and key[1] == "engine":
            of_engine, setting = key[1:], key[2]
            ours = {repr(getattr(one, setting)) for one in (alone.engine, *(pool.engine for pool in pools.values()))}
            if len(ours) == 1 and all(((role, *of_engine), problem) in found for role in pools):
                if (of_engine, problem) not in shared:
                    yield of_engine, problem
                shared.add((of_engine, problem))
                continue
        yield key, problem


def models_by_key(config: ClusterConfig) -> Iterator[tuple[Key, ClusterConfig]]:
    """Each model alone, and the key under which its pools are."""
    for position, alone in enumerate(config.each()):
        yield ("models", str(position)) if config.models else (), alone


class _Mistake(Exception):  # noqa: N818 - reads as the sentence it carries
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


def _resolved(served: S, locate: Callable[[ServedModelConfig], LocatedModel]) -> S:
    try:
        model_dir, version, name = locate(served)
    except NoSuchVersion as error:
        raise _Mistake("version", str(error)) from None
    except (SourceError, WeightsUrlError) as error:
        raise _Mistake("path", str(error)) from None
    except OSError as error:  # e.g. a name that is too long
        raise _Mistake("path", error.strerror or str(error)) from None
    unwatchable = why_not_watched(served, model_dir, version) if served.watch else None
    if unwatchable is not None:
        raise _Mistake("watch", unwatchable)
    try:
        return dataclasses.replace(served, path=str(model_dir), name=served.name or name, version=version)
    except ValueError:
        raise _Mistake("path", f"the directory's name {name!r} cannot be the model's; give model.name") from None
