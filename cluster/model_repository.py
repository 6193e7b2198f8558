"""A model with versions in numbered folders, as a Triton model repository has them:

    NAME/1/config.json, *.safetensors, tokenizer.json ...
    NAME/2/...

`model.path: NAME` takes the highest number, `model.version: 1` another one. A folder with a config.json of its own is a
model without such versions.
"""

from __future__ import annotations

from pathlib import Path


class NoSuchVersion(Exception):  # noqa: N818 - reads as the sentence it carries
    """The folder that was asked for is not there."""


def version_folder(path: Path, version: str | None) -> tuple[Path, str | None]:
    """The directory of the model, and its version where the folder says so. Raises NoSuchVersion."""
    numbers = [] if (path / "config.json").exists() else version_numbers(path)
    if not numbers:
        return path, version
    chosen = str(numbers[-1]) if version is None else version
    if chosen not in map(str, numbers):
        raise NoSuchVersion(f"no folder {chosen!r} in {path}; there are {', '.join(map(str, numbers))}")
    return path / chosen, chosen


def version_numbers(path: Path) -> list[int]:
    """The numbered folders of a model, ascending. Names such as `01` are none: which one would `1` be?"""
    if not path.is_dir():
        return []
    names = [entry.name for entry in path.iterdir() if entry.is_dir() and entry.name.isascii()]
    return sorted(int(name) for name in names if name.isdigit() and str(int(name)) == name)
