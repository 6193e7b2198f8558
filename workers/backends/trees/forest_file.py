"""Which file a forest is in, and the library that reads it."""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.workers.backends.backend import BackendError, ModelContext
from slipstream.workers.backends.file_checks import check_exists
from slipstream.workers.backends.model_settings import default_threads, whole_number
from slipstream.workers.backends.trees.forest import Forest

# `model_type` -> the file of a model that names none.
FILES = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "sklearn_pickle": "model.pkl",
}
ALIASES = {"skl": "sklearn_pickle"}
DEFAULT_TYPE = "xgboost"
CHECKPOINT = "treelite_checkpoint"
PASSIVE = ("OMP_WAIT_POLICY", "passive")


def model_type(model: ModelContext) -> str:
    """Raises BackendError."""
    given = model.parameters.get("model_type", DEFAULT_TYPE)
    known = ALIASES.get(given, given)
    if known == CHECKPOINT:
        text = f"model '{model.name}': checkpoints of Treelite are not served: save the model that they were made from"
        raise BackendError(f"{text}, with the parameter model_type {', '.join(FILES)}", "UNSUPPORTED")
    if known not in FILES:
        text = f"model '{model.name}': model_type must be one of {', '.join(FILES)}, got '{given}'"
        raise BackendError(text, "INVALID_ARG")
    return known


def forest_path(model: ModelContext) -> Path:
    """Raises BackendError if there is no file."""
    path = model.model_file
    if path.is_dir():
        path = path / FILES[model_type(model)]
    check_exists(model, path)
    return path


def read_forest(model: ModelContext) -> Forest:
    """Raises BackendError."""
    kind, path = model_type(model), forest_path(model)
    given = whole_number(model, "num_threads", model.parameters.get("num_threads") or model.settings.get("num_threads"))
    try:
        return forest_of(kind, path, given, given or default_threads(model))
    except BackendError:
        raise
    except ModuleNotFoundError as error:
        text = f"model_type '{kind}' needs the package {error.name}, which is not installed"
        raise BackendError(f"model '{model.name}': {text}: pip install 'slipstream[trees]'", "UNAVAILABLE") from error
    except Exception as error:  # each library has its own, and what is unpickled raises anything
        text = f"failed to load model '{model.name}': {path.name} cannot be read as {kind}: {error}"
        raise BackendError(text, "INTERNAL") from error


def forest_of(kind: str, path: Path, num_jobs: int, num_threads: int) -> Forest:
    """A process imports the library of its model and no other. Raises what the library raises.

    Threads of the libraries that wait for work would otherwise spin, on cores that other instances need: with more
    instances than cores, one row then takes milliseconds instead of microseconds."""
    os.environ.setdefault(*PASSIVE)  # read by the library of OpenMP when it is loaded
    if kind == "lightgbm":
        from slipstream.workers.backends.trees.lightgbm_forest import LightgbmForest

        return LightgbmForest(path, num_threads)
    if kind == "sklearn_pickle":
        from slipstream.workers.backends.trees.sklearn_forest import SklearnForest

        return SklearnForest(path, num_jobs or 1)
    from slipstream.workers.backends.trees.xgboost_forest import XgboostForest

    return XgboostForest(path, num_threads)
