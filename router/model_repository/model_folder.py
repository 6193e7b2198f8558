"""A model's folder in a repository: its versions, its configuration, and when its files were changed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CONFIG_FILE = "config.pbtxt"
CONFIGS_FOLDER = "configs"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    path: Path

    def config_file(self, config_name: str) -> Path:
        """`configs/<config_name>.pbtxt` if it is there, else `config.pbtxt`, whether it is there or not."""
        custom = self.path / CONFIGS_FOLDER / f"{config_name}.pbtxt"
        return custom if config_name and custom.exists() else self.path / CONFIG_FILE

    def subfolders(self) -> list[str]:
        """Names, sorted. Raises OSError."""
        return sorted(entry.name for entry in os.scandir(self.path) if entry.is_dir())

    def files_of_first_version(self, versions: list[int]) -> list[str]:
        """What the backend is recognised by. Raises OSError."""
        return os.listdir(self.path / str(versions[0])) if versions else []

    def times_ns(self) -> dict[str, int]:
        """ "" -> when entries were added to or removed from the folder; each entry -> the last change of it and of
        everything in it. Hidden files do not count, nor what vanishes meanwhile."""
        times = {"": _time_ns(self.path)}
        for entry in _entries(self.path):
            times[entry.name] = _newest_ns(Path(entry.path))
        return times


def _newest_ns(path: Path) -> int:
    return max([_time_ns(path), *(_newest_ns(Path(entry.path)) for entry in _entries(path))])


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        return sorted((entry for entry in os.scandir(path) if entry.name[0] != "."), key=lambda entry: entry.name)
    except (NotADirectoryError, FileNotFoundError, PermissionError):
        return []


def _time_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
