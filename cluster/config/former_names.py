"""Settings that have been renamed. Configuration files may still use the former names; the state file of a cluster and
the settings that a driver sends to its processes keep them, because another version of Slipstream may read those."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.settings_file import ConfigError, Key, SettingsFile
from slipstream.router.config import router_config
from slipstream.router.config.router_config import RouterConfig

FORMER_NAMES: dict[type, dict[str, str]] = {
    ClusterConfig: {"operator": "admin_api"},
    RouterConfig: router_config.FORMER_NAMES,
}


def former_keys(section: type = ClusterConfig, at: Key = ()) -> Iterator[tuple[Key, str]]:
    """Each former key below a section, and the name that its last part has now."""
    for former, name in FORMER_NAMES.get(section, {}).items():
        yield (*at, former), name
    for name, kind in typing.get_type_hints(section).items():
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from former_keys(kind, (*at, name))


def with_new_names(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a cluster with each former name replaced."""
    for key, name in former_keys():
        settings = _renamed(settings, key, name)
    return settings


def with_former_names(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a cluster as versions of Slipstream read them that do not know the new names."""
    for key, name in former_keys():
        settings = _renamed(settings, (*key[:-1], name), key[-1])
    return settings


def with_new_keys(file: SettingsFile) -> tuple[SettingsFile, list[str]]:
    """The file as if it had no former names, and a warning for each that it has. Raises ConfigError if a setting is
    given under both names."""
    found = [(key, (*key[:-1], name)) for key, name in former_keys() if _has(file.settings, key)]
    twice = [
        f"{file.place(former)}: given also as {'.'.join(key)}, which is its name now"
        for former, key in found
        if _has(file.settings, key)
    ]
    if twice:
        raise ConfigError(twice)
    warnings = [
        f"{file.place(former)}: is called {'.'.join(key)} now; `slipstream check --rewrite {file.path}` renames it"
        for former, key in found
    ]
    lines = dict(file.lines)
    for former, key in found:
        lines |= {(*key, *at[len(key) :]): line for at, line in file.lines.items() if at[: len(former)] == former}
    return SettingsFile(file.path, with_new_names(file.settings), lines), warnings


def _has(settings: Any, key: Key) -> bool:
    for name in key:
        if not isinstance(settings, dict) or name not in settings:
            return False
        settings = settings[name]
    return True


def _renamed(settings: dict[str, Any], key: Key, name: str) -> dict[str, Any]:
    """A copy, in the same order, in which the last part of the key is replaced by the name."""
    if not _has(settings, key):
        return settings
    first, *rest = key
    if rest:
        return {**settings, first: _renamed(settings[first], tuple(rest), name)}
    return {name if one == first else one: value for one, value in settings.items()}
