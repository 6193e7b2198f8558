"""A model's folder in a repository: its versions, its configuration, and when its files were changed."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CONFIG_FILE = "config.pbtxt"
CONFIGS_FOLDER = "configs"
COMPILED_FOLDER = "__pycache__"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    path: Path

    def config_file(self, config_name: str) -> Path:
        """`configs/<config_name>.pbtxt` if it is there, else `config.pbtxt`, whether it is there or not."""
        custom = self.path / CONFIGS_FOLDER / f"{config_name}.pbtxt"
        return custom if config_name and custom.exists() else self.path / CONFIG_FILE

    def subfolders(self) -> list[str]:
        """Names, sorted. Raises OSError."""
        return sorted(entry.name for entry in os.scandir(self.path) if is_folder(entry))

    def files_of_first_version(self, versions: list[int]) -> list[str]:
        """What the backend is recognised by. Raises OSError."""
        return os.listdir(self.path / str(versions[0])) if versions else []

    def times_ns(self) -> dict[str, int]:
        """Each file and folder below it -> when it was changed; 0 for folders, which also change when Python keeps
        what it has compiled in them. Neither that nor hidden files count. What vanishes meanwhile is left out."""
        times: dict[str, int] = {}
        _add_times(self.path, "", times, set())
        return times


def is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads nowhere, in a circle, or where this process may not look, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _add_times(folder: Path, prefix: str, times: dict[str, int], seen: set[tuple[int, int]]) -> None:
    """`seen` are the folders above and before: links may lead back."""
    try:
        status = folder.stat()
        entries = list(os.scandir(folder))
    except OSError:
        return
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.name[0] == "." or entry.name == COMPILED_FOLDER:
            continue
        if is_folder(entry):
            times[name] = 0
            _add_times(folder / entry.name, f"{name}/", times, seen)
        else:
            with suppress(OSError):
                times[name] = entry.stat().st_mtime_ns
