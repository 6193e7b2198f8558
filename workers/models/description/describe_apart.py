"""The description of a general model: from the cache, or from a process of its own that makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from slipstream.workers.models.description.apart import ResultCache, key_of, run_apart
from slipstream.workers.models.description.model_description import CodeNeededError, CodeNotRunError, Found, ModelDescription
from slipstream.workers.models.directory.json_keys import ModelError, read_json
from slipstream.workers.models.directory.model_config import CONFIG_FILE

EXAMINE = "slipstream.workers.models.general.examine"  # what runs in that process
# Of a model that has code of its own in its directory: it is not to be run at all, not in this process nor in one that
# this process starts, or it may be.
RemoteCode = Literal["refused", "elsewhere", "here"]


def describe_apart(model_dir: Path, code: RemoteCode = "refused") -> ModelDescription:
    """Raises ModelError: CodeNeededError if the model needs code that is refused, CodeNotRunError if its code may be
    run, but not here."""
    try:
        return _found(model_dir, runs_code=False).result()
    except CodeNeededError as error:
        if code == "refused":
            raise
        if code == "elsewhere":
            raise CodeNotRunError(str(error)) from None
    return _found(model_dir, runs_code=True).result()


def _found(model_dir: Path, *, runs_code: bool) -> Found:
    read_json(model_dir / CONFIG_FILE)  # says what is wrong with the file in our own words
    cache, key = ResultCache(), key_of("description", model_parts(model_dir, runs_code=runs_code))
    known = cache.get(key)
    if known is not None:
        try:
            return Found.of_json(known)
        except ValueError:  # written by something else
            pass
    printed = run_apart(EXAMINE, ("describe", str(model_dir.absolute()), str(int(runs_code))), model_dir)
    try:
        found = Found.of_json(printed)
    except ValueError as error:
        raise ModelError(f"{model_dir}: the process that describes the model printed something else") from error
    cache.put(key, printed)
    return found


def model_parts(model_dir: Path, *, runs_code: bool) -> list[bytes]:
    """The contents that a description depends on. Raises ModelError."""
    files = [model_dir / CONFIG_FILE, *(sorted(model_dir.glob("*.py")) if runs_code else ())]
    try:
        # The sentence of a refusal names the directory.
        return [str(model_dir.absolute()).encode(), *(path.read_bytes() for path in files)]
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read: {error.strerror}") from error
