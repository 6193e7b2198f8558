"""Reads the file of a model that is added to a running cluster, or updated: one entry of `models` by itself, a list of
them, or the file of a whole cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.former_names import with_new_keys
from slipstream.cluster.config.loading.model_settings import problems_of_models, resolve_models
from slipstream.cluster.config.model_entry import ModelEntry
from slipstream.cluster.config.setting_errors import settings_at, validated
from slipstream.cluster.config.settings_file import ConfigError, Key, SettingsFile
from slipstream.cluster.repository.model_location import ModelFiles

ENTRY: Key = ("models", "0")


def is_entry(path: Path) -> bool:
    """Whether the file has one entry by itself. Raises ConfigError."""
    return "path" in SettingsFile.read(path, (), needed="").settings


def entries_of(
    path: Path, running: ClusterConfig, warn: Callable[[str], None], files: ModelFiles, name: str = ""
) -> list[ModelEntry]:
    """The models in a file. `name` is that of an entry by itself that has none; "": that of its directory. What a model
    leaves out of its engine is as in the file or, where that is for no whole cluster, as in the `running` one. Remote
    models get the directories that `files` makes. Raises ConfigError."""
    if path.exists() and not path.is_file():  # to wait at a FIFO would hold up the driver's other changes
        raise ConfigError([f"{path}: must be a file"])
    known = [*settings_at(ENTRY), *settings_at(())]
    file, warnings = with_new_keys(SettingsFile.read(path, known, needed="path"))
    for warning in warnings:
        warn(warning)
    is_alone = "path" in file.settings
    if is_alone or "model" not in file.settings:
        file = _with_engine(_as_list(file, name) if is_alone else file, running)
    try:
        config = dataclasses.replace(validated(file), model_cache=running.model_cache)
        config = resolve_models(file, config, files)
        problems = [f"{file.place(key)}: {problem}" for key, problem in problems_of_models(config)]
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        prefix = ".".join(ENTRY) + "."
        raise ConfigError([one.replace(prefix, "", 1) if is_alone else one for one in error.problems]) from None
    return list(config.entries())


def entry_for_update(
    path: Path, name: str, running: ClusterConfig, warn: Callable[[str], None], files: ModelFiles
) -> ClusterConfig:
    """The running cluster's model of this name alone, as the file has it. Raises ConfigError."""
    entries = entries_of(path, running, warn, files, name)
    entry = next((one for one in entries if one.name == name), None)
    if entry is None:
        there = ", ".join(one.name for one in entries)
        raise ConfigError([f"{path}: model {name!r} is not in it; there are: {there}"])
    entry = dataclasses.replace(entry, aliases=next(one for one in running.entries() if one.name == name).aliases)
    return running.with_models([entry if one.name == name else one for one in running.entries()]).of_model(name)


def _as_list(file: SettingsFile, name: str) -> SettingsFile:
    """The file of a single entry as one with a list."""
    lines = {(*ENTRY, *key): line for key, line in file.lines.items()}
    named = {"name": name} if name else {}
    return SettingsFile(file.path, {"models": [{**named, **file.settings}]}, lines)


def _with_engine(file: SettingsFile, running: ClusterConfig) -> SettingsFile:
    """With the shared settings of the running cluster's engine, where the file has none."""
    if "engine" in file.settings:
        return file
    return dataclasses.replace(file, settings={**file.settings, "engine": dataclasses.asdict(running.engine)})
