"""The files that came with a load request, as the folder of a model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from slipstream.router.model_repository.repository_error import RepositoryError


def write_override(model: str, files: Mapping[str, bytes], parent: Path | None) -> Path:
    """A new folder in `parent` (None: the system's folder for temporary files). `files` is `<version>/<path>` ->
    contents. Raises RepositoryError if a path leads out of the folder, or if it cannot be written."""
    try:
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{model}-", dir=parent)).resolve()
    except OSError as error:
        raise RepositoryError(f"the files of model '{model}' cannot be written: {error}") from None
    try:
        for name, contents in files.items():
            _write(folder, name, contents)
    except BaseException:
        remove_override(folder)
        raise
    return folder


def remove_override(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, name: str, contents: bytes) -> None:
    try:
        path = (folder / name).resolve()
        if path == folder or not path.is_relative_to(folder):
            raise RepositoryError(
                f"Invalid file parameter 'file:{name}' with normalized path '{path}' must stay within model directory."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        text = f"Invalid file parameter 'file:{name}', directory has been created as a file"
        raise RepositoryError(text) from None
    except (OSError, ValueError) as error:
        raise RepositoryError(f"Invalid file parameter 'file:{name}': {error}") from None
