"""The module of a backend, by its name."""

from __future__ import annotations

import importlib
from types import ModuleType

from slipstream.workers.backends.backend import BackendError

# Backend -> the extra of Slipstream that has its packages.
EXTRAS = {"onnxruntime": "onnx"}


def backend_module(name: str) -> ModuleType:
    """It has the functions of `Backend`. Raises BackendError if there is no such backend, or a package is missing that
    it needs."""
    package = f"slipstream.workers.backends.{name}"
    try:
        return importlib.import_module(f"{package}.backend")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if package.startswith(missing) or missing.startswith(package):
            raise BackendError(f"unable to find backend library for backend '{name}'", "INVALID_ARG") from error
        extra = EXTRAS.get(name)
        remedy = f": pip install 'slipstream[{extra}]'" if extra else ""
        text = f"backend '{name}' needs the package {missing}, which is not installed{remedy}"
        raise BackendError(text, "UNAVAILABLE") from error
