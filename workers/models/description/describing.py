"""The description of a general model: from the cache, or made, in the cluster by a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from slipstream.workers.models.description.model_description import (
    CodeNeededError,
    CodeNotRunError,
    Found,
    ModelDescription,
)
from slipstream.workers.models.description.module_process import run_in_subprocess
from slipstream.workers.models.description.result_cache import ResultCache, key_of
from slipstream.workers.models.directory.json_keys import ModelError, read_json
from slipstream.workers.models.directory.model_config import CONFIG_FILE

EXAMINE = "slipstream.workers.models.general.examination.examine"  # what runs in that process
# Of a model that has code of its own in its directory: it is not to be run at all, not in this process nor in one that
# this process starts, or it may be.
RemoteCode = Literal["refused", "elsewhere", "here"]


Examine = Callable[[Path, bool], Found]  # of a directory, whose code may be run or not


def examine_in_subprocess(model_dir: Path, runs_code: bool) -> Found:
    """In a process of its own. Raises ModelError if that fails."""
    printed = run_in_subprocess(EXAMINE, ("describe", str(model_dir.absolute()), str(int(runs_code))), model_dir)
    try:
        return Found.of_json(printed)
    except ValueError as error:
        raise ModelError(f"{model_dir}: the process that describes the model printed something else") from error


def describe(
    model_dir: Path, code: RemoteCode = "refused", examine: Examine = examine_in_subprocess
) -> ModelDescription:
    """What `examine` finds, or has found before. Raises ModelError: CodeNeededError if the model needs code that is
    refused, CodeNotRunError if its code may be run, but not here."""
    try:
        return _found(model_dir, examine, runs_code=False).result(model_dir)
    except CodeNeededError as error:
        if code == "refused":
            raise
        if code == "elsewhere":
            raise CodeNotRunError(str(error)) from None
    return _found(model_dir, examine, runs_code=True).result(model_dir)


def _found(model_dir: Path, examine: Examine, *, runs_code: bool) -> Found:
    read_json(model_dir / CONFIG_FILE)  # says what is wrong with the file in our own words
    cache, key = ResultCache(), key_of("description", model_parts(model_dir, runs_code=runs_code))
    known = cache.get(key)
    if known is not None:
        try:
            return Found.of_json(known)
        except ValueError:  # written by something else
            pass
    found = examine(model_dir, runs_code)
    if found.description is not None or found.needs_code:  # a refusal may be for a package that is missing
        cache.put(key, found.to_json())
    return found


def model_parts(model_dir: Path, *, runs_code: bool) -> list[bytes]:
    """The contents that a description depends on. Raises ModelError."""
    files = [model_dir / CONFIG_FILE, *(sorted(model_dir.glob("*.py")) if runs_code else ())]
    try:
        return [path.read_bytes() for path in files]
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read: {error.strerror}") from error
