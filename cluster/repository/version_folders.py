"""A model whose versions are numbered folders, as in a Triton model repository:

    NAME/1/config.json, *.safetensors, tokenizer.json ...
    NAME/2/...

`model.path: NAME` selects the highest number, `model.version: 1` another one. A folder that has a config.json itself is
a model without such versions.
"""

from __future__ import annotations

from pathlib import Path

from slipstream.cluster.config.model_entry import ServedModelConfig
from slipstream.router.model_files.sources.weights_url import WeightsUrl


class NoSuchVersion(Exception):  # noqa: N818 - reads as the sentence it carries
    """There is no folder for the version that was asked for."""


def version_folder(path: Path, version: str | None) -> tuple[Path, str | None]:
    """The directory of the model, and its version if that is given by the folder. Raises NoSuchVersion."""
    numbers = [] if (path / "config.json").exists() else version_numbers(path)
    if not numbers:
        return path, version
    chosen = str(numbers[-1]) if version is None else version
    if chosen not in map(str, numbers):
        raise NoSuchVersion(f"no folder {chosen!r} in {path}; there are {', '.join(map(str, numbers))}")
    return path / chosen, chosen


def why_not_watched(model: ServedModelConfig, model_dir: Path, version: str | None) -> str | None:
    """Why further versions of a model cannot be waited for, of which the one in `model_dir` is served; None if they
    can."""
    if model.version is not None:
        return f"must be false where a version is chosen, because it follows the highest number, got {model.version!r}"
    if WeightsUrl.parse(model.path) is not None:
        return f"follows a directory of this host, and path is {model.path}"
    if version is None or model_dir.name != version:
        return f"needs a numbered folder for each version, and {model_dir} has none"
    return None


def version_numbers(path: Path) -> list[int]:
    """The numbered folders of a model, ascending. Names such as `01` do not count, because `1` would be ambiguous."""
    if not path.is_dir():
        return []
    names = [entry.name for entry in path.iterdir() if entry.is_dir() and entry.name.isascii()]
    return sorted(int(name) for name in names if name.isdigit() and str(int(name)) == name)
